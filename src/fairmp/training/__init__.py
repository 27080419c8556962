"""FairClassifier: the trainer, the candidates, fitted models and their files."""
