"""What the per-pixel methods share on each setting: batches, lengths, augmentation."""
