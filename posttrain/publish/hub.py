"""A checkpoint to a hub: create the repository, commit, and check what lies there afterwards.

`huggingface_hub` takes the address from HF_ENDPOINT and the token from HF_TOKEN or `hf auth login`,
and tries transfers again. Files are added and replaced, never deleted.
"""

from __future__ import annotations

from typing import Any

from posttrain.errors import ConfigError
from posttrain.publish.files import UploadPlan


def push(plan: UploadPlan, *, private: bool) -> None:
    """Publish, and print what is done; after a failure the same call goes on.

    Args:
        private: create it so; an existing public repository is then refused.

    Raises:
        ConfigError: no token, no right, no network, or the hub has other bytes afterwards.
    """
    # imported here: a plan needs no HTTP client
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    # of httpx or httpx2, by the client's version: a broken connection is another of its kind
    http_error: Any = HfHubHTTPError.__mro__[1]
    name = plan.repository
    api = HfApi(library_name="posttrain")
    try:
        try:
            there_private = api.repo_info(name).private
            if private and not there_private:
                raise ConfigError(f"{name} exists and is public: give --public to push to it")
            if there_private and not private:
                print(f"{name} exists and stays private; its settings page changes that")
            stay = sorted({*api.list_repo_files(name)} - {*plan.files, ".gitattributes"})
            if stay:
                print(f"{name} exists; these files stay as they are: {', '.join(stay)}")
        except RepositoryNotFoundError:
            api.create_repo(name, private=private, exist_ok=True)
            print(f"created {name}, {'private' if private else 'public'}")
        operations = [CommitOperationAdd(path, source) for path, source in plan.files.items()]
        commit = api.create_commit(
            name, operations, commit_message=f"checkpoint {plan.digest[:12]} of posttrain"
        )
        there = {one.path: one for one in api.get_paths_info(name, [*plan.files])}
    except LocalTokenNotFoundError as error:
        raise ConfigError("no token: set HF_TOKEN or run `hf auth login`") from error
    except OfflineModeIsEnabled as error:
        raise ConfigError(f"{name}: HF_HUB_OFFLINE is set, nothing was pushed") from error
    except ConfigError:
        raise
    except (http_error, RuntimeError, ValueError, OSError) as error:
        # the client wraps a failed transfer without its reason
        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error
        raise ConfigError(
            f"{name}: {' '.join(str(cause).split())}; what was transferred stays, the same command "
            "goes on"
        ) from error
    wrong = [one.path_in_repo for one in operations if not _same(one, there.get(one.path_in_repo))]
    if wrong:
        raise ConfigError(f"{name}: the hub does not hold what was sent: {', '.join(wrong)}")
    print(f"commit {commit.oid[:12]}: {len(plan.files)} files, checked against their hashes")
    print(commit.repo_url)


def _same(sent: Any, there: Any) -> bool:
    """Whether the hub's record of a file has its hash: sha256 where it is large, else git's."""
    from huggingface_hub.utils.sha import git_hash

    if there is None:
        return False
    if there.lfs is not None:
        return there.lfs.sha256 == sent.upload_info.sha256.hex()
    with sent.as_file() as file:
        return there.blob_id == git_hash(file.read())
