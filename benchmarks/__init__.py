"""What `vcc-infuse bench` measures: parts that take turns, so that other load on the machine slows them alike."""
