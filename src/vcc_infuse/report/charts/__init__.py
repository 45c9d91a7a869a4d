"""The charts of the report: of the predictions, of the training, and images."""
