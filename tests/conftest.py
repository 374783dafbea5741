from hypothesis import HealthCheck, settings

# Examples that run a model take as long as they take; the machine may be busy.
settings.register_profile("ttkern", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ttkern")
