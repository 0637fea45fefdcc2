"""The paper's tables and figures, one declaration each."""
