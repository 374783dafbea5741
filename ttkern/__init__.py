"""ttkern: write a prefill path once against ttnn; see it proven, measured and served."""
