"""Two backends under one name: the target is measured, the generator judges and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ValidationInfo, field_validator

from rollouts.backends.base import (
    Backend,
    BackendUnavailable,
    Completion,
    Config,
    Independence,
    KeyOf,
    Opened,
    PartConfig,
    ProviderRequest,
    SubjectFiles,
    backend,
    kind_named,
    make,
    parse_config,
    stored_config,
)
from rollouts.errors import InvalidInput


class Generator(NamedTuple):
    """Who judges and writes, and what its endpoint calls the model; empty where requests name none."""

    backend: Backend
    model: str


class DualConfig(Config):
    """Each part is {kind, config, key_env, model}. The target's model is the run's own: given here, it must be that."""

    target: PartConfig
    generator: PartConfig

    @field_validator("target", "generator")
    @classmethod
    def _is_sound(cls, part: PartConfig, info: ValidationInfo) -> PartConfig:
        path = f"config.{info.field_name}"
        if part.kind == Dual.kind:
            raise InvalidInput(f"{path}.kind", "a dual backend holds two others, not another dual one.")
        try:
            kind_named(part.kind)
        except InvalidInput as error:
            raise InvalidInput(f"{path}.kind", error.message.removeprefix("kind: ")) from error
        parsed = parse_config(part.kind, part.config, path=f"{path}.config")
        stored = stored_config(part.kind, parsed, path=f"{path}.config")
        return PartConfig(kind=part.kind, config=stored, key_env=part.key_env, model=part.model)


@backend
class Dual(Backend):
    """Everything that is asked of it is asked of the target, which also says what it is."""

    kind = "dual"
    config_model: ClassVar[type[BaseModel]] = DualConfig

    def __init__(self, config: BaseModel, *, key: str | None, key_of: KeyOf = lambda name: None) -> None:
        super().__init__(config, key=key)
        assert isinstance(config, DualConfig)
        part = config.generator
        self.generator = Generator(make(part.kind, part.config, key_of, part.key_env), part.model)
        self._target_model = config.target.model
        part = config.target
        self.target = make(part.kind, part.config, key_of, part.key_env)
        self.exclusive = self.target.exclusive
        self.serves_files = self.target.serves_files
        self.speaks_http = self.target.speaks_http

    @classmethod
    def parts(cls, config: BaseModel) -> Mapping[str, PartConfig]:
        assert isinstance(config, DualConfig)
        return {"config.target": config.target, "config.generator": config.generator}

    @classmethod
    def made(cls, config: BaseModel, *, key_of: KeyOf, key_env: str) -> Dual:
        return cls(config, key=None, key_of=key_of)

    @property
    def transcript_sha256(self) -> str | None:
        return self.target.transcript_sha256

    @property
    def independence(self) -> Independence:
        return self.target.independence

    @property
    def native_tools(self) -> bool:
        return self.target.native_tools

    def open(self, files: SubjectFiles) -> AbstractAsyncContextManager[Opened]:
        if self._target_model and files.remote_model != self._target_model:
            raise BackendUnavailable(
                "config",
                f"The target serves {self._target_model!r}; the run asks for {files.remote_model!r}.",
            )
        return self.target.open(files)

    async def facts_after(self, files: SubjectFiles, opened: Opened) -> Mapping[str, Any]:
        return await self.target.facts_after(files, opened)

    def request(
        self,
        *,
        messages: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        sample_index: int,
        remote_model: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ProviderRequest:
        return self.target.request(
            messages=messages,
            sampling=sampling,
            sample_index=sample_index,
            remote_model=remote_model,
            tools=tools,
        )

    async def call(self, request: ProviderRequest) -> bytes:
        return await self.target.call(request)

    def read(self, body: bytes) -> Completion:
        return self.target.read(body)
