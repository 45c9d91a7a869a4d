"""HTML through Jinja2 templates with autoescape: class and file names come from outside and must stay text."""

from __future__ import annotations

import base64
import functools
import hashlib
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@functools.cache
def environment() -> Environment:
    """The one environment: templates under `report/templates`, every value escaped, an unknown name is an error."""
    found = Environment(
        loader=PackageLoader("vcc_infuse.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # For `tojson`, which also escapes <, > and &, so that no value can end the script element it stands in.
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    found.filters["policy_hash"] = policy_hash
    return found


def policy_hash(text: str) -> str:
    """The source expression by which a Content-Security-Policy allows one inline script or style, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render(template_name: str, **values: Any) -> str:
    """The text of a template with its values filled in."""
    return environment().get_template(template_name).render(**values)
