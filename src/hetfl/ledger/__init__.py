"""What git keeps of trained cells, and what it makes of them: compact records, the ledger, and reproductions."""
