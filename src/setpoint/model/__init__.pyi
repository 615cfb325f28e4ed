from .pretrained.config_json import config_from_pretrained as config_from_pretrained
from .pretrained.load import load_pretrained as load_pretrained
from .pretrained.save_pretrained import save_pretrained as save_pretrained
