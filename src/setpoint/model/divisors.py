"""Valid values near a given one, for fields that must divide, or be divisible by, another."""

REACH = 100_000
"""Maximum distance of divisors from the value."""


def nearest_divisors(number: int, target: int, count: int = 3) -> tuple[int, ...]:
    """Find the divisors of a number nearest to a value.

    Returns:
        Divisors, nearest first; if two are equally near, the smaller first. () for a number below
        1.
    """
    divisors: list[int] = []
    # Outwards from the value, so a huge number, most likely a typo, costs no more.
    start = min(max(target, 1), number)
    for distance in range(REACH):
        pair = dict.fromkeys((start - distance, start + distance))
        divisors += [d for d in pair if 1 <= d <= number and number % d == 0]
        if len(divisors) >= count or (start - distance <= 1 and start + distance >= number):
            break
    return tuple(sorted(divisors, key=lambda d: (abs(d - target), d))[:count])


def nearest_multiples(value: int, step: int) -> list[int]:
    """The multiples of `step` just below and above a value."""
    below = value // step * step
    multiples = [size for size in (below, below + step) if size > 0]
    return sorted(multiples, key=lambda size: abs(size - value))
