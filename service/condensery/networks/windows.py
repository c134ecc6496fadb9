"""Passages longer than the compressor's window, in overlapping windows."""


def cut_windows(tokens: int, size: int) -> list[tuple[int, int]]:
    """Cut ``tokens`` into windows of at most ``size``, evenly spaced, a quarter overlapping."""
    if tokens <= size:
        return [(0, tokens)]
    count = -(-(tokens - size) // max(1, size * 3 // 4)) + 1
    starts = [round(i * (tokens - size) / (count - 1)) for i in range(count)]
    return [(start, start + size) for start in starts]
