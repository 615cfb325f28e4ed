from .config import Job as Job
from .run import train as train
from .session import Run as Run

def prepare_threads() -> None: ...
