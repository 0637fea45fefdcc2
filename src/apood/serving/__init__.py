"""Detectors in use: the guard in front of a generator, the HTTP service, and the proxy in front of a model server."""
