"""Texts with few labels: embed them once, then train on the embeddings.

The texts are generated here, so that nothing is downloaded. The embeddings are wordllama's if it is installed
(`pip install wordllama`, 16 MB, works offline), else TF-IDF reduced to 64 dimensions.

python examples/text_embeddings.py
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from vcc_infuse import SSLClassifier

TOPICS = {
    "cooking": "oven pan sauce flour butter garlic recipe dough simmer taste onion bake salt broth knife dinner",
    "sport": "team match goal coach league player season score stadium referee win training ball defense injury final",
    "finance": "bank market shares profit loan interest investor tax budget debt price fund growth trade rate bond",
    "travel": "flight hotel beach passport museum train luggage island guide ticket city border map harbor trip tour",
}
SENTENCES = (
    "The {} and the {} were better than last time.",
    "Nobody spoke about the {} after the {}.",
    "We need another {} before the {} is ready.",
    "Is the {} more important than the {}?",
    "They lost the {}, but the {} was fine.",
)


def write_text(words, everything, rng):
    """Two sentences; a third of the words belong to any topic, as in real texts."""
    sentences = rng.choice(SENTENCES, 2)
    pick = [rng.choice(everything if rng.random() < 0.35 else words) for _ in range(4)]
    return " ".join(sentences).format(*pick)


def make_texts(count, seed):
    """Texts and their topics."""
    rng, topics = np.random.default_rng(seed), {name: words.split() for name, words in TOPICS.items()}
    everything = [word for words in topics.values() for word in words]
    names = rng.choice(list(topics), count)
    return [write_text(topics[name], everything, rng) for name in names], names


def embed(*collections):
    """One vector per text."""
    try:
        import wordllama
    except ImportError:
        model = make_pipeline(TfidfVectorizer(), TruncatedSVD(64, random_state=0)).fit(collections[0])
        return [model.transform(texts) for texts in collections]
    # The tokenizer lies in the package, where it is looked for only if the package is named as the cache.
    model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    return [model.embed(texts) for texts in collections]


def main(steps):
    texts, topics = make_texts(2000, seed=0)
    test_texts, test_topics = make_texts(1000, seed=1)
    x, test_x = embed(texts, test_texts)
    shown = np.full(len(x), -1, dtype=object)  # −1: unlabeled
    for name in TOPICS:
        rows = np.flatnonzero(topics == name)[:8]
        shown[rows] = name

    labeled = np.flatnonzero(shown != -1)
    baseline = LogisticRegression(max_iter=1000).fit(x[labeled], topics[labeled])
    print(f"LogisticRegression on {len(labeled)} labels: error {100 * (1 - baseline.score(test_x, test_topics)):.1f} %")

    model = SSLClassifier(head_init="random", steps=steps).fit(x, shown)
    unlabeled = len(x) - len(labeled)
    print(f"SSLClassifier, {unlabeled} more texts: error {100 * (1 - model.score(test_x, test_topics)):.1f} %")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
