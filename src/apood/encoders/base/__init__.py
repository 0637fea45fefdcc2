"""What text and audio encoders share: the contract, the device, loading of weights, the fingerprint."""
