"""Spliced texts: ID texts with one foreign sentence, at a place that hashes decide."""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence

__all__ = ["splice", "splice_sets", "split_sentences"]

_END = re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"'”’)\]])\s+")
_FEWEST_WORDS, _MOST_WORDS = 5, 50  # of a sentence that is inserted


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text: what ends in a full stop, an exclamation or question mark, and a space.

    Unlike in `find_sentence_places` of the encoders, no sentence ends at a line break or an East Asian full stop.
    Published results are measured on texts that were spliced at these places, so they stay as they are.
    """
    return [sentence for sentence in _END.split(text) if sentence]


def splice_sets(
    hosts: Sequence[str], donors: Mapping[str, Sequence[str]], salt: str, max_tokens: int
) -> dict[str, list[str]]:
    """Return, for each set of donors, all hosts with one sentence of a donor each."""
    spliced = {}
    for name, own in donors.items():
        # Both lie on a ring of hashes: a host takes the next donor, so a new donor changes few pairs.
        ring = sorted((_hash(salt, name, "donor", text), text) for text in own)
        places = [place for place, _ in ring]
        pairs = [(host, ring[bisect_left(places, _hash(salt, name, "host", host)) % len(ring)][1]) for host in hosts]
        spliced[name] = [splice(host, donor, f"{salt}\0{name}", max_tokens) for host, donor in pairs]
    return spliced


def splice(host: str, donor: str, salt: str, max_tokens: int) -> str:
    """Return the host with one sentence of the donor at one of its sentence boundaries; hashes choose both.

    The beginning and the end of the host are boundaries. Of a donor, sentences of 5 to 50 words are eligible; if it has
    none, its first 50 words are taken. At most `max_tokens` / 2 words of the host come before the sentence, so that it
    is not cut off.
    """
    sentences = split_sentences(host)
    eligible = [one for one in split_sentences(donor) if _FEWEST_WORDS <= len(one.split()) <= _MOST_WORDS]
    if not eligible:
        eligible = [" ".join(donor.split()[:_MOST_WORDS])]
    sentence = eligible[_hash(salt, "sentence", host, donor) % len(eligible)]
    boundaries, words = [0], 0
    for number, one in enumerate(sentences, start=1):
        words += len(one.split())
        if words > max_tokens // 2:
            break
        boundaries.append(number)
    place = boundaries[_hash(salt, "place", host, donor) % len(boundaries)]
    return " ".join([*sentences[:place], sentence, *sentences[place:]])


def _hash(*parts: str) -> int:
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8])
