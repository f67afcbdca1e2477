"""The tests mirror edgeinfer/; see scripts/test."""
