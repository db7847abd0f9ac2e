"""What a run gives away: release folder, model card, exported samples, and their verification."""
