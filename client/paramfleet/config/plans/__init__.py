"""What a strategy has done beside the training: checkpoints by time, guards of its steps."""
