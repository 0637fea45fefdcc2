"""What text and audio encoders share: the contract, and pretrained models."""
