"""Generators that can be guarded: models of transformers, and any callable from a text to an output."""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from apood.data.record import Pair
from apood.detectors.contract.base import Detector, refuse_lacking
from apood.encoders.base.encoder import choose_dtype
from apood.encoders.base.pretrained import (
    GENERATING,
    Kind,
    LoadedTextModel,
    find_kind,
    find_pretrained,
    find_weight_files,
    fingerprint,
    load_text_model,
    load_tokenizer,
)
from apood.encoders.factory import reopen_encoder
from apood.encoders.text.batching import batch_by_length, choose_batch_tokens
from apood.encoders.text.encoder import TextEncoder, find_generation_files
from apood.encoders.text.generation import Generated, Prompt, cut_outputs, read_prompts
from apood.encoders.text.model import Mode, TextModel, probe_model
from apood.encoders.text.states import Rows, TextPass
from apood.encoders.text.tokenising import Tokeniser
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.identity import EncoderIdentity, describe_encoder, same_encoder

__all__ = ["Guardable", "GuardedCallable", "GuardedModel", "Reading", "refuse_other_model"]


@dataclass(frozen=True)
class Reading:
    """Some inputs that were read, and can be generated for.

    Attributes:
        indices: which of the texts that were given.
        truncated: which of them are longer than what the detector looks at.
        tokens: their states, and the channels that the detector looks at.
        generate: is given which of them to generate for, by their places in `indices`, and the options of the call;
            gives the outputs and, where outputs are checked, their states.
    """

    indices: list[int]
    truncated: list[bool]
    tokens: TokenBatch
    generate: Callable[[list[int], dict[str, Any]], tuple[list[Any], TokenBatch | None]]


class Guardable(Protocol):
    """A generator in two steps."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while the generator is used."""

    def read(self, texts: list[str]) -> Iterable[Reading]:
        """The texts, a batch after the other, each read when it is asked for; those without tokens are in none."""


_AT_ONCE = 64  # texts that are encoded before any of them is generated for


class GuardedCallable:
    """A callable, and the encoders of the detectors of its inputs and outputs, which are no part of it.

    Args:
        function: is given a text and the options of a call.
        detector: of the inputs.
        output_detector: of the outputs, which must then be texts.
        encoder: that of `detector`; None to open it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        detector: Detector,
        output_detector: Detector | None,
        encoder: TextEncoder | None,
    ) -> None:
        self.lock = nullcontext()  # what the callable can bear is its own business
        self._function = function
        self._encoding = threading.Lock()
        self._encoder = _encoder_of(detector, encoder, ("input",), "detector")
        self._output_encoder: TextEncoder | None = None
        if output_detector is not None:
            same = self._encoder if same_encoder(output_detector.encoder_, self._encoder.identity) else None
            self._output_encoder = _encoder_of(output_detector, same, ("input", "reference"), "output_detector")

    def read(self, texts: list[str]) -> Iterator[Reading]:
        """The texts, encoded some at a time."""
        for start in range(0, len(texts), _AT_ONCE):
            some = texts[start : start + _AT_ONCE]
            with self._encoding:
                prepared = self._encoder.prepare(some)
                tokens = self._encoder.run(prepared)
            indices = [index for index, length in enumerate(tokens.lengths.tolist()) if length]
            yield Reading(
                [start + index for index in indices],
                [index in prepared.shortened for index in indices],
                tokens.select(indices),
                partial(self._generate, [some[index] for index in indices]),
            )

    def _generate(
        self, texts: list[str], chosen: list[int], options: dict[str, Any]
    ) -> tuple[list[Any], TokenBatch | None]:
        """One call for each text that was chosen."""
        texts = [texts[index] for index in chosen]
        outputs = [self._function(text, **options) for text in texts]
        encoder = self._output_encoder
        if encoder is None:
            return outputs, None
        for output in outputs:
            if not isinstance(output, str):
                raise InputError(f"An output that shall be checked must be a string, got {type(output).__name__}.")
        pairs = [Pair(text, output) for text, output in zip(texts, outputs, strict=True)]
        with self._encoding:
            return outputs, encoder.encode(pairs if encoder.mode == "reference" else outputs)


def _encoder_of(detector: Detector, given: TextEncoder | None, modes: tuple[str, ...], role: str) -> TextEncoder:
    identity = detector.encoder_
    if identity is None:
        raise InputError(f"The {role} does not say which encoder its tokens came from, so it cannot score texts.")
    if identity.get("mode") not in modes:
        raise InputError(
            f"The {role} of a callable must be of mode {' or '.join(modes)}, and is of mode {identity.get('mode')}."
        )
    encoder = reopen_encoder(identity, channels=detector.requires) if given is None else given
    if not isinstance(encoder, TextEncoder):
        raise InputError(f"The {role} was fitted on sounds, and a guard is for texts.")
    if not same_encoder(identity, encoder.identity):
        raise InputError(
            f"The encoder gives tokens from {describe_encoder(encoder.identity)}, "
            f"the {role} was fitted on tokens from {describe_encoder(identity)}."
        )
    probe = encoder.encode([Pair("a", "a")] if encoder.mode == "reference" else ["a"])
    refuse_lacking(probe, detector.name, detector.requires, f"{role}'s tokens")
    return encoder


_OWN_ARGUMENTS = {"inputs", "input_ids", "inputs_embeds", "attention_mask", "encoder_outputs", "past_key_values"}
_NEW_TOKENS = 128  # expected of an output, for the size of batches


class GuardedModel:
    """A causal or an encoder-decoder model, its tokenizer, and how their detectors want them read.

    The model and the tokenizer stay as they are.

    Args:
        model: of transformers, in memory.
        tokenizer: of transformers.
        detector: of its inputs.
        output_detector: of its outputs.
        pipeline: the transformers pipeline that has the model, whose settings hold.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        detector: Detector,
        output_detector: Detector | None = None,
        *,
        pipeline: Any = None,
    ) -> None:
        # transformers may put hooks into a model for as long as a pass takes.
        self.lock = threading.Lock()
        self._model, self._pipeline, self._tokenizer = model, pipeline, copy.deepcopy(tokenizer)
        loaded, name = _loaded(model), str(getattr(model, "name_or_path", "") or type(model).__name__)
        identity = _identity_of(detector, "input", "detector")
        _refuse_other_template(pipeline, identity)
        self._fill, self._context, self._name = loaded.padding_id, loaded.context, name
        self._max_tokens, self._template = int(identity["max_tokens"] or 0), _text_or_none(identity.get("template"))
        self._tokeniser = Tokeniser(self._tokenizer, name, self._max_tokens, self._template)
        self._inputs = self._pass_for(detector, identity, loaded, name)
        self._reader = TextModel(model, loaded.kind, int(identity["layer"] or 0))
        self._detector, self._output_detector = detector, output_detector
        self._outputs: TextPass | None = None
        self._defaults: dict[str, Any] = {}
        if output_detector is not None:
            template = identity.get("template")
            identity = _identity_of(output_detector, "output", "output_detector")
            if identity.get("template") != template:
                raise InputError(
                    f"The detector was fitted on inputs in the template {template!r}, the output_detector on outputs "
                    f"for inputs in the template {identity.get('template')!r}: they must be the same."
                )
            self._outputs = self._pass_for(output_detector, identity, loaded, name)
            beams = identity.get("beams", 1)
            self._defaults = {"max_new_tokens": identity["max_new_tokens"], "num_beams": beams, "do_sample": False}

    @classmethod
    def open(cls, model: str | Path, detector: Detector, output_detector: Detector | None) -> Self:
        """The model in a folder, or one of the hub, on a GPU if there is one."""
        pretrained = find_pretrained(model)
        tokenizer = load_tokenizer(pretrained)
        device = resolve_device()
        loaded = load_text_model(pretrained, choose_dtype(device), generates=True, logprobs=True)
        return cls(loaded.model.to(device).eval(), tokenizer, detector, output_detector)

    def read(self, texts: list[str]) -> Iterator[Reading]:
        """The texts in batches of similar length."""
        sources, places = self._tokeniser.tokenise_sources(texts)
        cut = set(places)
        for chosen in self._batches(sources):
            some = sources.select(chosen)
            with torch.inference_mode():
                prompt = read_prompts(self._reader, some, self._fill)
                tokens = _token_batch(self._inputs.compute_input(prompt, some), self._detector)
            indices = chosen.tolist()
            longer = {place: texts[index] for place, index in enumerate(indices) if index in cut}
            generate = partial(self._generate, prompt, longer)
            yield Reading(indices, [index in cut for index in indices], tokens, generate)

    def _batches(self, sources: Ragged) -> Iterator[Tensor]:
        lengths = torch.where(sources.lengths > 0, sources.lengths + _NEW_TOKENS, 0)
        return batch_by_length(lengths, choose_batch_tokens(self._model.device))

    def _generate(
        self, prompt: Prompt, longer: dict[int, str], chosen: list[int], options: dict[str, Any]
    ) -> tuple[list[Any], TokenBatch | None]:
        """What the model generates for the prompts that were chosen, and the states of that where they are checked.

        The prompts in `longer` are only the beginnings of these texts, which are read again as a whole.
        """
        if given := sorted(_OWN_ARGUMENTS & options.keys()):
            raise InputError(f"The guard itself gives the model its input, so {given[0]} cannot be an option.")
        layers = self._settings(options)
        if (_setting("num_return_sequences", layers) or 1) != 1:
            raise InputError("A guard generates one output for an input: num_return_sequences must be 1.")
        options = {**({} if "generation_config" in options else self._defaults), **options}
        layers = self._settings(options)
        if _setting("pad_token_id", layers) is None:
            options["pad_token_id"] = self._fill
        order: list[int] = []
        texts: list[str] = []
        states: list[TokenBatch] = []
        with torch.inference_mode():
            for indices, some in self._whole_prompts(prompt, longer, chosen, layers):
                generated = self._continued(some, layers, options)
                order += indices
                texts += self._tokeniser.decode(generated.tokens)
                if self._outputs is not None and self._output_detector is not None:
                    states.append(_token_batch(self._outputs.compute_output(some, generated), self._output_detector))
        back = [order.index(index) for index in chosen]
        return [texts[at] for at in back], TokenBatch.concatenate(states).select(back) if states else None

    def _whole_prompts(
        self, prompt: Prompt, longer: dict[int, str], chosen: list[int], layers: list[Any]
    ) -> Iterator[tuple[list[int], Prompt]]:
        """The prompts that were chosen, as they were read or, in batches, read again."""
        if whole := [index for index in chosen if index not in longer]:
            yield whole, prompt.select(whole)
        if again := [index for index in chosen if index in longer]:
            tokeniser = Tokeniser(self._tokenizer, self._name, self._room(layers), self._template)
            sources = tokeniser.tokenise_sources([longer[index] for index in again]).ids
            for some in self._batches(sources):
                found = read_prompts(self._reader, sources.select(some), self._fill)
                yield [again[at] for at in some.tolist()], found

    def _room(self, layers: list[Any]) -> int:
        """How many tokens of a text the model can generate from; never fewer than the detector looks at."""
        room = self._context
        if self._reader.kind == "causal":
            # New tokens take positions behind the prompt's; if nobody says how many, transformers takes what is left.
            room -= int(_setting("max_new_tokens", layers) or 1)
        return max(self._max_tokens, min(room, int(self._tokenizer.model_max_length)))

    def _continued(self, prompt: Prompt, layers: list[Any], options: dict[str, Any]) -> Generated:
        arguments = prompt.make_arguments(_setting("num_beams", layers) or 1)
        if _setting("use_cache", layers) is False:
            arguments.pop("past_key_values", None)
        ends = _setting("eos_token_id", [*layers, self._model.config])
        sequences = self._sequences(arguments, options)
        return cut_outputs(prompt, sequences, torch.tensor([] if ends is None else ends).flatten().long())

    def _sequences(self, prompts: dict[str, Any], options: dict[str, Any]) -> Tensor:
        if self._pipeline is None:
            found = self._model.generate(**prompts, **options)
            return found if isinstance(found, Tensor) else found.sequences
        inputs = {name: prompts.pop(name) for name in ("input_ids", "attention_mask")}
        if self._pipeline.task == "text-generation":
            inputs["prompt_text"] = None  # only for what the pipeline does with the output, and it gets none
        found = self._pipeline.forward(inputs, **{**self._pipeline._forward_params, **prompts, **options})
        sequences: Tensor = found["generated_sequence" if "generated_sequence" in found else "output_ids"]
        return torch.as_tensor(sequences).flatten(0, 1).to(self._model.device)

    def _settings(self, options: dict[str, Any]) -> list[Any]:
        """Where generation settings come from, the first that has one decides."""
        pipeline = self._pipeline
        own = (
            []
            if pipeline is None
            else [
                pipeline._forward_params,
                getattr(pipeline, "_generate_kwargs", None),
                getattr(pipeline, "generation_config", None),
                getattr(pipeline, "_generation_defaults", None),
            ]
        )
        return [options, options.get("generation_config"), *own, self._model.generation_config]

    def _pass_for(self, detector: Detector, identity: EncoderIdentity, loaded: LoadedTextModel, name: str) -> TextPass:
        mode: Mode = "input" if identity["mode"] == "input" else "output"
        given = {"tokens"} | ({"token_logprobs"} if mode == "output" or loaded.kind == "causal" else set())
        if lacking := sorted(detector.requires - given):
            raise InputError(
                f"The method {detector.name} needs {lacking[0]}, which the pass over the {mode} of a "
                f"{'causal' if loaded.kind == 'causal' else 'encoder-decoder'} model does not give; "
                f"it gives {', '.join(sorted(given))}."
            )
        logprobs = "token_logprobs" in detector.requires
        layer = int(identity["layer"] or 0)
        probe = probe_model(loaded, name, mode, layer, with_head=logprobs)
        if "tokens" in detector.requires and probe.dim != detector.dim_:
            raise InputError(
                f"The states of {name!r} have D={probe.dim}, the detector was fitted on D={detector.dim_}."
            )
        refuse_other_model(loaded.model, identity)
        special_ids = None if identity.get("special_tokens", True) else self._tokeniser.special_ids
        return TextPass(
            loaded.model,
            loaded.kind,
            mode=mode,
            layer=layer,
            fill=self._fill,
            special_ids=special_ids,
            logprobs=logprobs,
        )


def _loaded(model: Any) -> LoadedTextModel:
    kind: Kind = "encoder"
    if hasattr(model, "generate") and hasattr(model, "config"):
        # What a model in memory is, its own class says; a configuration knows it only once it was saved.
        config = copy.copy(model.config)
        config.architectures = [type(model).__name__]
        kind = find_kind(config)
    if kind not in GENERATING:
        raise InputError(
            "A model must be a causal language model or an encoder-decoder model of transformers, with its head, "
            f"got {type(model).__name__}."
        )
    if model.training:
        raise InputError(f"The {type(model).__name__} is in training mode, where states are random: call eval() first.")
    return LoadedTextModel(model, model.config, kind)


def _identity_of(detector: Detector, mode: str, role: str) -> EncoderIdentity:
    identity = detector.encoder_
    if identity is None or not {"layer", "max_tokens"} <= identity.keys():
        raise InputError(
            f"The {role} does not say which states of a model it was fitted on: fit it on tokens of a TextEncoder."
        )
    if identity.get("mode") != mode:
        raise InputError(f"The {role} of a model must be of mode {mode}, and is of mode {identity.get('mode')}.")
    return identity


def _refuse_other_template(pipeline: Any, identity: EncoderIdentity) -> None:
    """A pipeline may put a prefix before its inputs, and the detector must have seen it."""
    prefix = getattr(pipeline, "prefix", None) or ""
    template = str(identity.get("template", "{text}"))
    if not template.startswith(prefix):
        raise InputError(
            f"The pipeline puts {prefix!r} before its inputs, and the detector was fitted on inputs in the template "
            f"{template!r}."
        )


def _token_batch(found: Mapping[str, Rows], detector: Detector) -> TokenBatch:
    channels = {name: Ragged.from_lengths(rows.values.cpu(), rows.lengths) for name, rows in found.items()}
    states = channels.pop("states")
    return TokenBatch(states.values, states.offsets, channels, detector.encoder_)


def _setting(name: str, layers: Sequence[Any]) -> Any:
    """The first that any of the layers (dictionaries, configurations, None) has."""
    for layer in layers:
        found = layer.get(name) if isinstance(layer, Mapping) else getattr(layer, name, None)
        if found is not None:
            return found
    return None


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def refuse_other_model(model: Any, identity: EncoderIdentity) -> None:
    """Refuses a model that comes from other files than the detector's encoder did.

    A model that was loaded from a folder is known by the folder's fingerprint, one from the hub by its name and
    revision. Of a model that was made in memory, nothing is known but its shape.
    """
    folder = Path(model.name_or_path or "")
    name, revision = identity.get("model"), identity.get("revision")
    if model.name_or_path and (folder / "config.json").is_file() and find_weight_files(folder):
        mode: Mode = "output" if identity.get("mode") == "output" else "input"
        known = identity.get("fingerprint")
        other = known is not None and fingerprint(folder, *find_generation_files(folder, mode)) != known
    else:
        commit = getattr(model.config, "_commit_hash", None)
        other = None not in (commit, revision) and (model.name_or_path, commit) != (name, revision)
    if other:
        raise InputError(
            f"The detector was fitted on tokens from {describe_encoder(identity)}, and the model from "
            f"{model.name_or_path!r} is another one: guard the model that it was fitted for, or fit it again."
        )
