"""FairClassifier, the training loop, penalties and model files."""
