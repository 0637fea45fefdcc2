"""What the guard and the HTTP service share."""
