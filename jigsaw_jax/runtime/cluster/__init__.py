"""The same run over processes and hosts, on Ray."""
