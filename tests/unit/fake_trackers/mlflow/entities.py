import dataclasses


@dataclasses.dataclass
class Metric:
    key: str
    value: float
    timestamp: int
    step: int


@dataclasses.dataclass
class Param:
    key: str
    value: str
