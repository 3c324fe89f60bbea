"""The request bodies of REST v2, checked as strictly as RunPod checks them: an unknown key is refused."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MAX_BODY_BYTES = 102_400
MAX_NAME_CHARACTERS = 191


CudaVersion = Annotated[str, Field(pattern=r"^\d+\.\d+$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class GpuBody(_Body):
    """`gpu` of a create request."""

    id: str
    count: int = Field(default=1, ge=1, le=8)
    minRamPerGpu: int | None = Field(default=None, ge=1)  # noqa: N815 - the API's spelling
    minVcpuCountPerGpu: int | None = Field(default=None, ge=1)  # noqa: N815
    allowedCudaVersions: list[CudaVersion] | None = None  # noqa: N815
    minCudaVersion: CudaVersion | None = None  # noqa: N815

    @model_validator(mode="after")
    def _one_constraint(self) -> Self:
        if self.allowedCudaVersions and self.minCudaVersion:
            message = "minCudaVersion and allowedCudaVersions exclude each other"
            raise ValueError(message)
        return self


class CpuBody(_Body):
    """`cpu` of a create request."""

    id: str
    vcpuCount: int = Field(ge=2)  # noqa: N815


class NetworkMount(_Body):
    """A network volume and where it appears."""

    volumeId: str  # noqa: N815
    path: Annotated[str, Field(pattern=r"^/")]


class PersistentMount(_Body):
    """A disk that exists as long as the pod."""

    size: int = Field(ge=10)
    path: Annotated[str, Field(pattern=r"^/")]


class MountsBody(_Body):
    """`mounts` of a create request."""

    network: list[NetworkMount] = Field(default_factory=list, max_length=1)
    persistent: PersistentMount | None = None


class CreatePodBody(_Body):
    """`POST /v2/pods`."""

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARACTERS)
    image: str | None = None
    templateId: str | None = None  # noqa: N815
    args: str | None = None
    cloud: Literal["SECURE", "COMMUNITY"] | None = None
    gpu: GpuBody | None = None
    cpu: CpuBody | None = None
    disk: int = Field(default=10, ge=1)
    ports: list[Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}/(tcp|http)$")]] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    registry: str | None = None
    globalNetworking: bool = False  # noqa: N815
    startJupyter: bool = False  # noqa: N815
    startSsh: bool = False  # noqa: N815
    dataCenterIds: list[str] = Field(default_factory=list)  # noqa: N815
    mounts: MountsBody = Field(default_factory=MountsBody)

    @model_validator(mode="after")
    def _one_machine_one_image(self) -> Self:
        if (self.gpu is None) == (self.cpu is None):
            message = "exactly one of gpu and cpu must be given"
            raise ValueError(message)
        if not self.image and not self.templateId:
            message = "image or templateId must be given"
            raise ValueError(message)
        return self


class PatchPodBody(_Body):
    """`PATCH /v2/pods/{id}`."""

    name: str | None = Field(default=None, min_length=1, max_length=MAX_NAME_CHARACTERS)
    image: str | None = None
    env: dict[str, str] | None = None
    ports: list[str] | None = None
    globalNetworking: bool | None = None  # noqa: N815


class ActionBody(_Body):
    """`POST /v2/pods/{id}/action`."""

    action: Literal["start", "stop", "restart", "terminate"]


class RegistryBody(_Body):
    """The credentials of a container registry."""

    name: str = Field(min_length=1)
    username: str = Field(min_length=1)
    password: str = Field(min_length=1)


class SshKeysBody(_Body):
    """`PUT /v2/account/ssh-keys`."""

    keys: list[str]


class GraphqlBody(BaseModel):
    """`POST /graphql`; only `myself` is answered."""

    query: str
    variables: dict[str, object] | None = None


def describe(error: ValidationError) -> list[str]:
    """Say what is wrong with a body, one line per field."""
    return [f"{'.'.join(str(part) for part in one['loc']) or 'body'}: {one['msg']}" for one in error.errors()]
