"""How an object store is reached: who speaks, and where it is. A client finds it out for its server, which never asks its own environment.

The order is that of boto3: the home's ``credentials.json``, the environment, a profile of ``~/.aws`` (read by botocore,
where it is installed), and what the native client finds by itself: tokens of containers and of instances.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from xxhash import xxh3_64_hexdigest

from prefeed.config import Config, parse_bool
from prefeed.errors import CredentialsError
from prefeed.sources.credentials import kept_variables, options_for
from prefeed.system.machine import boot_id, is_relative, network_namespace

S3_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
S3_TOKENS: Final = ("AWS_SESSION_TOKEN", "AWS_TOKEN")

_S3_SAME_NAMES: Final = (
    "access_key_id", "secret_access_key", "region", "default_region", "skip_signature", "request_payer", "role_arn",
    "role_session_name", "web_identity_token_file", "sts_endpoint", "container_credentials_relative_uri",
    "container_credentials_full_uri", "container_authorization_token_file", "imdsv1_fallback", "metadata_endpoint",
    "s3_express", "virtual_hosted_style_request", "unsigned_payload", "checksum_algorithm", "server_side_encryption",
    "sse_kms_key_id", "sse_bucket_key_enabled", "sse_customer_key_base64", "conditional_put", "copy_if_not_exists",
    "disable_tagging", "disable_bulk_delete",
)  # fmt: skip
_S3: Final = {
    **{name: (f"AWS_{name.upper()}",) for name in _S3_SAME_NAMES},
    "endpoint": S3_ENDPOINTS,
    "session_token": S3_TOKENS,
}
_GS: Final = {
    "service_account": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
    "service_account_key": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "application_credentials": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "base_url": ("GOOGLE_BASE_URL",),
    "bearer_token": ("GOOGLE_BEARER_TOKEN",),
    "skip_signature": ("GOOGLE_SKIP_SIGNATURE",),
}
_AZ_SAME_NAMES: Final = (
    "credential_type", "object_id", "msi_resource_id", "federated_token_file", "use_azure_cli", "skip_signature",
    "encryption_key", "disable_tagging", "fabric_token_service_url", "fabric_workload_host", "fabric_session_token",
    "fabric_cluster_identifier",
)  # fmt: skip
_AZ: Final = {
    **{name: (f"AZURE_{name.upper()}",) for name in _AZ_SAME_NAMES},
    "account_name": ("AZURE_STORAGE_ACCOUNT_NAME",),
    "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
    "client_id": ("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"),
    "client_secret": ("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
    "tenant_id": (
        "AZURE_STORAGE_TENANT_ID", "AZURE_STORAGE_AUTHORITY_ID", "AZURE_TENANT_ID", "AZURE_AUTHORITY_ID",
    ),
    "authority_host": ("AZURE_STORAGE_AUTHORITY_HOST", "AZURE_AUTHORITY_HOST"),
    "sas_key": ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
    "token": ("AZURE_STORAGE_TOKEN",),
    "use_emulator": ("AZURE_STORAGE_USE_EMULATOR",),
    "endpoint": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "msi_endpoint": ("AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT"),
}  # fmt: skip
BEARER_TOKENS: Final = "PREFEED_BEARER_TOKENS"
"""Variable with tokens for web servers: URLs, each followed by its token, with white space between all of them."""

_AZURE_SUFFIX: Final = "core.windows.net"
_AZURE_CONNECTION: Final = "AZURE_STORAGE_CONNECTION_STRING"

_OPTIONS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {"s3": _S3, "gs": _GS, "az": _AZ}
_SPEAKERS: Final[Mapping[str, frozenset[str]]] = {
    "s3": frozenset({
        "access_key_id", "secret_access_key", "session_token", "skip_signature", "role_arn", "role_session_name",
        "web_identity_token_file", "container_credentials_relative_uri", "container_credentials_full_uri",
        "container_authorization_token_file",
    }),
    "gs": frozenset({
        "service_account", "service_account_path", "service_account_key", "application_credentials", "bearer_token",
        "skip_signature",
    }),
    "az": frozenset({
        "account_key", "client_id", "client_secret", "tenant_id", "sas_key", "token", "skip_signature",
        "federated_token_file", "use_azure_cli", "msi_endpoint", "object_id", "msi_resource_id",
    }),
    "http": frozenset({"username", "password", "bearer_token"}),
    "https": frozenset({"username", "password", "bearer_token"}),
}  # fmt: skip
"""Options that say who speaks: they come from one place, never partly from another."""

SPEAKERS_OF_S3: Final = _SPEAKERS["s3"]

_PLACES: Final = frozenset({
    "endpoint", "aws_endpoint_url_s3", "region", "default_region", "base_url", "account_name", "use_emulator",
})  # fmt: skip
"""Options that say where a store is, and nothing of who speaks."""

_OF_SIGNED: Final = frozenset({
    "access_key_id", "secret_access_key", "session_token", "region", "default_region", "endpoint", "aws_endpoint_url_s3",
    "virtual_hosted_style_request", "prefeed_profile", "prefeed_ca_bundle",
})  # fmt: skip
"""Options of S3 that signed URLs follow."""

_SIGNING: Final = ("access_key_id", "secret_access_key", "session_token", "region", "default_region")

_TOKEN_FILES: Final = frozenset({"web_identity_token_file", "container_authorization_token_file"})

_STORE_VARIABLES: Final = re.compile(
    rf"(AWS|GOOGLE|AZURE)_.*|STORAGE_EMULATOR_HOST|(HTTPS?|ALL|NO)_PROXY|{BEARER_TOKENS}", re.IGNORECASE
)
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_AMAZON: Final = re.compile(r"(?:^|\.)amazonaws\.com(\.cn)?$")
_REGION_OF_HOST: Final = re.compile(r"(?<=[.-])us-gov-[a-z]+-[0-9]+")
_PARTITIONS: Final = {"cn": "aws-cn", "us-gov": "aws-us-gov", "us-iso": "aws-iso", "eu-isoe": "aws-iso-e"}
_AMAZONS_TEMPORARY_KEY: Final = re.compile(r"ASIA([A-Z2-7]{16})")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StoreAccess:
    """How one object store is reached. It may hold secrets: it is kept in memory, and its text shows nothing of it.

    Pickled for a process that is being started it is whole, else without who speaks: such a pickle may lie on a disk.

    Attributes:
        options: The native client's, by the names that it gives them; for HTTP ``username`` and ``password``, or ``bearer_token``.
        proxies: Variables that name proxies, in lower case.
        mark: What ``mark_of`` said of it when something was made with it; empty where nothing was.
        is_whole: False of one that was pickled without who speaks.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    proxies: Mapping[str, str] = field(default_factory=dict)
    mark: str = ""
    is_whole: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            return _made, (dict(self.options), dict(self.proxies), self.mark, self.is_whole)
        return _made, ({name: self.options[name] for name in self.options.keys() & _PLACES}, {}, self.mark, False)

    def __deepcopy__(self, _: dict[int, Any]) -> StoreAccess:
        return self

    def carried(self) -> StoreAccess:
        """Return the same for a server, which may not find the files that are named, or others: what they say takes their place."""
        if "access_key_id" not in self.options and not _TOKEN_FILES.isdisjoint(self.options):
            with contextlib.suppress(CredentialsError, ImportError):
                return replace(self, options={**self.options, **_of_botocore()})
        for name in ("service_account", "service_account_path", "application_credentials"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                text = Path(self.options[name]).read_text()
                if json.loads(text)["type"] == "service_account":
                    rest = {key: value for key, value in self.options.items() if key not in _SPEAKERS["gs"]}
                    return replace(self, options={**rest, "service_account_key": text})
        return self


def _made(options: dict[str, str], proxies: dict[str, str], mark: str, is_whole: bool) -> StoreAccess:
    return StoreAccess(options=options, proxies=proxies, mark=mark, is_whole=is_whole)


def own_access(url: str, config: Config) -> StoreAccess:
    """Return how this process reaches the store of a canonical URL.

    Raises:
        CredentialsError: ``credentials.json``, a profile of ``~/.aws`` that was asked for or a variable cannot be used.
    """
    scheme = url.partition("://")[0]
    given = options_for(url, config)
    found = _bearer_token(url) if scheme in ("http", "https") else _of_environment(scheme)
    speakers = _SPEAKERS.get(scheme, frozenset())
    if "skip_signature" in found and _is_true(found["skip_signature"]) and speakers.isdisjoint(given):
        found = {name: value for name, value in found.items() if name not in speakers or name == "skip_signature"}
    elif not speakers.isdisjoint(given):
        found = {name: value for name, value in found.items() if name not in speakers}
    elif scheme == "s3" and speakers.isdisjoint(found):
        found = {**_of_profile(), **found}
    if bundle := _ca_bundle(scheme):
        found.setdefault(CA_BUNDLE, bundle)
    proxies = {name: value for name in _PROXIES if (value := os.environ.get(name) or os.environ.get(name.upper()))}
    return StoreAccess(options={**found, **given}, proxies=proxies)


def access_as_made(url: str, config: Config, made_with: StoreAccess | None) -> StoreAccess:
    """Return how this process reaches the store that something was made of: with tokens of now, if it would still find that store.

    Args:
        url: Canonical.
        config: Settings.
        made_with: How the store was reached then; None: as now.

    Raises:
        CredentialsError: Who speaks to that store cannot be told.
    """
    try:
        now = own_access(url, config)
        now = replace(now, mark=mark_of(url, now))
    except CredentialsError:
        if made_with is not None and made_with.is_whole:
            return made_with
        raise
    if made_with is None or _is_of_same_store(url, now, made_with) or _is_fresher(now, made_with):
        return now
    if made_with.is_whole:
        return made_with  # another endpoint, or another account, is named meanwhile
    raise CredentialsError(
        f"the dataset of {url} was made with another endpoint or account than the environment names now, and was "
        "pickled without credentials: set the same endpoint and account, or make the dataset again"
    )


def _is_of_same_store(url: str, now: StoreAccess, before: StoreAccess) -> bool:
    if before.mark == now.mark:
        return True
    # Who spoke was in the URL, and is not pickled: the credentials of now are used.
    return url.startswith("http") and before.mark == mark_of(url, replace(now, options={}))


def _is_fresher(now: StoreAccess, before: StoreAccess) -> bool:
    """Return True for a temporary token at the same endpoint as another: that one will expire, if it has not, and this took its place."""
    if not all("session_token" in access.options for access in (now, before)):
        return False
    return all(now.options.get(name) == before.options.get(name) for name in (*_PLACES, "role_arn", _PROFILE))


def is_store_variable(name: str) -> bool:
    """Return whether a variable of the environment says who speaks to a store, or by which proxy."""
    return _STORE_VARIABLES.fullmatch(name) is not None


def forget_store_environment() -> None:
    """Take the variables that say who speaks to stores, and by which proxies, out of this process's environment.

    A server speaks for its clients, and each of them says how: it must not speak as the user who started it. What the home's
    ``credentials.json`` names is still found.
    """
    for name in list(os.environ):
        if is_store_variable(name):
            kept_variables[name] = os.environ.pop(name)


def native_options(url: str, access: StoreAccess) -> dict[str, str]:
    """Return the options as the native client takes them.

    What it is not told it takes from the environment, which may name another store by now: so it is told where the store is.
    """
    options = {name: value for name, value in access.options.items() if name not in (_PROFILE, CA_BUNDLE)}
    scheme = url.partition("://")[0]
    if scheme == "s3" and any(map(os.environ.get, S3_ENDPOINTS)):
        region = options.get("region") or options.get("default_region") or "us-east-1"
        options.setdefault("endpoint", f"https://s3.{region}.amazonaws.com")
        if os.environ.get(S3_ENDPOINTS[0]):  # which goes before the other, wherever that was told
            options.setdefault(S3_ENDPOINTS[0].lower(), options["endpoint"])
    elif scheme == "gs" and os.environ.get("GOOGLE_BASE_URL"):
        options.setdefault("base_url", "https://storage.googleapis.com")
    elif scheme == "az":
        if os.environ.get("AZURE_STORAGE_USE_EMULATOR"):
            options.setdefault("use_emulator", "false")
        if "account_name" in options and any(map(os.environ.get, _AZ["endpoint"])):
            options.setdefault("endpoint", f"https://{options['account_name']}.blob.core.windows.net")
    return options


def certificates_of(bundle: str) -> bytes:
    """Return the certificates in a file, or in the files of a directory.

    Raises:
        CredentialsError: There are none.
    """
    place = Path(bundle)
    try:
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        found = b"\n".join(data for file in files if b"-----BEGIN CERT" in (data := file.read_bytes()))
    except OSError as err:
        raise CredentialsError(f"{bundle}, which {_CA_VARIABLES} names, cannot be read: {err.strerror}") from err
    if not found:
        raise CredentialsError(
            f"{bundle}, which {_CA_VARIABLES} names, has no certificate in it: it must be in PEM format"
        )
    return found


def endpoint_of(url: str, config: Config) -> str:
    """Return the URL of the server that is spoken to for a canonical URL; raises as ``own_access``."""
    return endpoint_in(url, own_access(url, config).options)


def endpoint_in(url: str, given: Mapping[str, str]) -> str:
    """Return the URL that is spoken to: the root itself, or the endpoint that stands in for Amazon's."""
    if endpoint := given.get("endpoint") or given.get("base_url"):
        return endpoint
    if url.startswith("s3://"):
        return "https://amazonaws.com"
    return "https://windows.net" if url.startswith("az://") else url


def server_of(url: str, access: StoreAccess) -> tuple[str, str]:
    """Return the option that names the server of a bucket of Google or Azure, and the server's URL; empty for others and emulators."""
    scheme, options = url.partition("://")[0], access.options
    if scheme == "gs":
        return "base_url", options.get("base_url", "https://storage.googleapis.com")
    if scheme != "az" or _is_true(options.get("use_emulator", "0")):
        return "", ""
    account = options.get("account_name")
    return "endpoint", options.get("endpoint") or (f"https://{account}.blob.core.windows.net" if account else "")


def endpoint_words(url: str, access: StoreAccess) -> str:
    """Return which server is spoken to for a store, and the variables that name another one; empty where the URL shows it all."""
    scheme, options = url.partition("://")[0], access.options
    if scheme == "s3":
        endpoint = _endpoint_of_s3(options)
        return f"{endpoint} (AWS_ENDPOINT_URL)" if endpoint else "Amazon's (for another store set AWS_ENDPOINT_URL)"
    if scheme == "gs":
        return f"{options['base_url']} (GOOGLE_BASE_URL, STORAGE_EMULATOR_HOST)" if "base_url" in options else ""
    endpoint = options.get("endpoint", "") if scheme == "az" else ""
    return f"{endpoint} (AZURE_STORAGE_ENDPOINT, {_AZURE_CONNECTION})" if endpoint else ""


def is_signed_here(access: StoreAccess) -> bool:
    """Return whether requests to a bucket of S3 can be signed with what is known: keys, and no header that each would need."""
    options = access.options.keys()
    return {"access_key_id", "secret_access_key"} <= options <= _OF_SIGNED and not any(map(os.environ.get, S3_TOKENS))


def signing_options(access: StoreAccess, *, asks_instance: bool = False) -> dict[str, str] | None:
    """Return what requests to a bucket of S3 are signed with, empty for those without a signature; None if it is not known.

    Args:
        access: How the store is reached.
        asks_instance: botocore, if it is installed, also asks the container and the machine.
    """
    options = dict(access.options)
    if _is_true(options.get("skip_signature", "0")):
        return {}
    if not {"access_key_id", "secret_access_key"} <= options.keys() and asks_instance:
        with contextlib.suppress(CredentialsError, ImportError):
            options |= _of_botocore(asks_instance=True)
    if not {"access_key_id", "secret_access_key"} <= options.keys():
        return None
    return {name: options[name] for name in _SIGNING if name in options}


def mark_of(url: str, access: StoreAccess) -> str:
    """Return what tells this store from others that have a bucket of the same name; empty where the URL says it all.

    Buckets of Amazon are one per partition, those of Google one in the world; Azure's belong to an account; on other
    endpoints they may belong to an account too. Amazon's temporary keys stand for their account, so that a fresh token
    is no other store.
    """
    scheme = url.partition("://")[0]
    options = access.options
    if scheme == "s3":
        told = _mark_of_s3(options)
    elif scheme == "gs":
        told = options.get("base_url", "")
    elif scheme == "az":
        names = ("account_name", "endpoint", "use_emulator")
        told = "\0".join(options.get(name, "") for name in names).rstrip("\0")
    else:
        told = options.get("username", "")
    if is_of_one_network(url, access):
        told += f"\0{boot_id()}\0{network_namespace()}"
    return xxh3_64_hexdigest(told.encode()) if told else ""


def is_of_one_network(url: str, access: StoreAccess) -> bool:
    """Return True when the store's address may mean another server in another container: ``localhost``, or a short name."""
    scheme, options = url.partition("://")[0], access.options
    if scheme.startswith("http"):
        address = url
    elif scheme == "s3":
        address = _endpoint_of_s3(options)
    elif scheme == "gs":
        address = options.get("base_url", "")
    elif _is_true(options.get("use_emulator", "0")):
        return True
    else:
        address = options.get("endpoint", "")
    with contextlib.suppress(ValueError):
        return bool(address) and is_relative(urlsplit(address).hostname or "")
    return True


def _endpoint_of_s3(options: Mapping[str, str]) -> str:
    return options.get("aws_endpoint_url_s3") or options.get("endpoint") or ""


def _mark_of_s3(options: Mapping[str, str]) -> str:
    endpoint = _endpoint_of_s3(options)
    host = urlsplit(endpoint).hostname or "" if endpoint else ""
    amazon = _AMAZON.search(host)
    if not endpoint or amazon is not None:
        named = _REGION_OF_HOST.search(host)
        region = named[0] if named else options.get("region") or options.get("default_region") or ""
        if amazon is not None and amazon[1]:
            return "aws-cn"
        return next((name for prefix, name in _PARTITIONS.items() if region.startswith(f"{prefix}-")), "")
    return f"{endpoint.rstrip('/').lower()}\0{_account_of(options)}"


def _account_of(options: Mapping[str, str]) -> str:
    """Return what stands for the account that speaks, the same for each of its fresh tokens where that can be told."""
    if _is_true(options.get("skip_signature", "0")):
        return "anonymous"
    key = options.get("access_key_id", "")
    if "session_token" not in options:
        return key or options.get("role_arn", "")
    temporary = _AMAZONS_TEMPORARY_KEY.fullmatch(key)
    if temporary is not None:  # 40 of its bits are the account's number
        number = int.from_bytes(base64.b32decode(temporary[1])[:6], "big") >> 7 & (1 << 40) - 1
        return f"account {number}"
    return options.get("role_arn") or options.get(_PROFILE) or key


def _is_true(text: str) -> bool:
    try:
        return parse_bool(text)
    except ValueError:
        return False


# ---------------------------------------------------------------- where it comes from


def _of_environment(scheme: str) -> dict[str, str]:
    """Return the options that variables name.

    Raises:
        CredentialsError: A variable cannot be used.
    """
    options: dict[str, str] = {}
    for option, names in _OPTIONS.get(scheme, {}).items():
        value = next((os.environ[name] for name in names if os.environ.get(name)), "")
        if value:
            options[option] = value
    if scheme == "s3" and _is_true(os.environ.get("AWS_NO_SIGN_REQUEST", "0")):
        options["skip_signature"] = "true"
    if scheme == "gs":
        _add_emulator_of_google(options)
    if scheme == "az" and os.environ.get(_AZURE_CONNECTION):
        connection = _of_connection_string(os.environ[_AZURE_CONNECTION])
        if not _SPEAKERS["az"].isdisjoint(connection):
            options = {name: value for name, value in options.items() if name not in _SPEAKERS["az"]}
        options |= connection
    return options


def _add_emulator_of_google(options: dict[str, str]) -> None:
    """Take an emulator's address, as google-cloud-storage does: without credentials, which are not for it."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator and "base_url" not in options:
        options["base_url"] = emulator if "://" in emulator else f"http://{emulator}"
        for name in _SPEAKERS["gs"]:
            options.pop(name, None)
    if options.get("base_url", "").startswith("http://") and _SPEAKERS["gs"].isdisjoint(options):
        options["skip_signature"] = "true"


def _of_connection_string(text: str) -> dict[str, str]:
    """Return the options that a connection string of Azure names, as azure-storage-blob reads it."""
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    given = {name.strip().lower(): value.strip() for name, _, value in pairs}
    account, endpoint = given.get("accountname", ""), given.get("blobendpoint", "")
    if given.get("usedevelopmentstorage", "").lower() == "true":
        return {"use_emulator": "true"}
    if not account and not endpoint:
        raise CredentialsError(
            f"{_AZURE_CONNECTION} names neither an account nor a BlobEndpoint; write AccountName=NAME;AccountKey=KEY"
        )
    protocol, suffix = given.get("defaultendpointsprotocol", "https"), given.get("endpointsuffix", _AZURE_SUFFIX)
    if not endpoint and (protocol, suffix) != ("https", _AZURE_SUFFIX):
        endpoint = f"{protocol}://{account}.blob.{suffix}"
    options = {
        "endpoint": endpoint.rstrip("/"), "account_name": account or (urlsplit(endpoint).hostname or "").partition(".")[0],
        "account_key": given.get("accountkey", ""), "sas_key": given.get("sharedaccesssignature", "").removeprefix("?"),
    }  # fmt: skip
    return {name: value for name, value in options.items() if value}


def _ca_bundle(scheme: str) -> str:
    """Return the file, or directory, of certificates that boto3 or requests would trust; empty for those of the machine."""
    names = ("AWS_CA_BUNDLE", *_CA_BUNDLES) if scheme == "s3" else _CA_BUNDLES
    found = [os.path.abspath(os.path.expanduser(os.environ[name])) for name in names if os.environ.get(name)]
    if found == [os.environ.get("SSL_CERT_FILE")] and not os.path.exists(found[0]):
        return ""  # as OpenSSL does
    return found[0] if found else ""


def _bearer_token(url: str) -> dict[str, str]:
    """Return the token of the longest URL in ``PREFEED_BEARER_TOKENS`` that a canonical URL is below; nothing without one."""
    words = os.environ.get(BEARER_TOKENS, "").split()
    if len(words) % 2 or not all(root.lower().startswith(("http://", "https://")) for root in words[::2]):
        raise CredentialsError(
            f'{BEARER_TOKENS} is not a list of URLs, each followed by its token; write {BEARER_TOKENS}="https://HOST/PATH TOKEN"'
        )
    found = [
        (root, token)
        for root, token in zip(map(_normalized, words[::2]), words[1::2], strict=True)
        if url == root or url.startswith(f"{root}/")
    ]
    return {"bearer_token": max(found, key=lambda pair: len(pair[0]))[1]} if found else {}


def _normalized(root: str) -> str:
    """Return the URL of a web server as canonical URLs spell it."""
    parts = urlsplit(root)
    port = {"http": ":80", "https": ":443"}[parts.scheme]
    return f"{parts.scheme}://{parts.netloc.lower().removesuffix(port)}{parts.path.rstrip('/')}"


CA_BUNDLE: Final = "prefeed_ca_bundle"
"""An option of ours: a file, or a directory, of certificates that are trusted in addition to those of the machine."""

_CA_VARIABLES: Final = "AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE or SSL_CERT_FILE"
_CA_BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")

_PROFILE: Final = "prefeed_profile"
"""An option of ours: the profile that temporary keys are of."""


def _of_profile() -> dict[str, str]:
    """Return the options that a profile of ``~/.aws`` stands for; none without one.

    botocore reads it, so that roles, SSO and programs that give credentials work as they do in boto3. It takes 0.2 s to
    import, and is not where there are no such files.
    """
    named = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or ""
    files = (
        os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
    )
    if not named and not any(os.path.exists(os.path.expanduser(file)) for file in files):
        return {}
    try:
        return _of_botocore(named or "default")
    except ImportError as err:
        if not named:
            return {}
        raise CredentialsError(
            f"AWS_PROFILE names the profile {named}, and reading it needs botocore: pip install 'prefeed[aws]'"
        ) from err


def _of_botocore(profile: str = "", *, asks_instance: bool = False) -> dict[str, str]:
    """Return what botocore's chain finds; ``profile`` is the one that it will read, if it is known."""
    sessions: Any = importlib.import_module("botocore.session")
    providers: Any = importlib.import_module("botocore.configprovider")
    failures: Any = importlib.import_module("botocore.exceptions")
    try:
        session = sessions.Session()
        if not asks_instance:  # the native client does so itself
            session.get_component("credential_provider").remove("iam-role")
        endpoint = providers.ConfiguredEndpointProvider(
            full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
        ).provide()
        credentials = session.get_credentials()
        speaker = None if credentials is None else credentials.get_frozen_credentials()
        region = session.get_config_variable("region")
    except failures.BotoCoreError as err:
        raise CredentialsError(f"the profile {profile or 'default'} of ~/.aws cannot be used: {err}") from err
    options = {"endpoint": endpoint, "region": region, CA_BUNDLE: session.get_config_variable("ca_bundle")}
    if speaker is not None:
        options |= {
            "access_key_id": speaker.access_key, "secret_access_key": speaker.secret_key,
            "session_token": speaker.token, _PROFILE: profile,
        }  # fmt: skip
    return {name: value for name, value in options.items() if value}
