"""A run's numbers in experiment trackers: TensorBoard, MLflow, Weights & Biases.

May import: flows.config, flows.monitoring, flows.run, flows.storage.
"""
