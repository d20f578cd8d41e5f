"""What a step, the attention in it and its data cost, measured so that ratios can be believed."""
