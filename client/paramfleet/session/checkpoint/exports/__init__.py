"""``fleet.save_inference_model``: whole models, bases and deltas."""
