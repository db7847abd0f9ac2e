"""The six matrix publishers of Zhang, Fu and Meng (2020), as published. None of them is private."""
