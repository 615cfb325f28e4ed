from .config import Inference as Inference
from .inference import infer as infer
