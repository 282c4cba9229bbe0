"""Common Alerting Protocol 1.2: alerts in as records, results out as alerts. docs/cap.md has the mapping."""
