from .layouts import Plan as Plan
from .layouts import plan as plan
