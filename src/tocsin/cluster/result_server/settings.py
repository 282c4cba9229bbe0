"""Settings of a process that serves results without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tocsin.cluster.settings import ClusterSettings
from tocsin.runtime.http.settings import ListenerSettings, Port


@dataclass(frozen=True, slots=True)
class ResultServerSettings(ListenerSettings):
    section = "results"
    prefix = "TOCSIN_RESULTS_"

    port: Port = 8572
    root: Annotated[str, "Data root of the data cluster."] = "tocsin-data"
    s3_endpoint: Annotated[str | None, "Address of the server of `s3://` roots, as for the data cluster."] = None
    s3_region: Annotated[str | None, "Region of the bucket, as for the data cluster."] = None
    state: Annotated[str | None, "State folder of the data cluster. Default: `state` inside the root."] = None
    catalog: Annotated[
        str | None, "SQLAlchemy URL of the data cluster's catalog. Default: SQLite in the state folder."
    ] = None
    keys: Annotated[str | None, "JWK-set file, or URL of the coordinator's `/v1/keys`, as for the data cluster."] = None
    keys_ca: Annotated[
        str | None, "PEM file with the authority that signed the certificate of that URL, if the system lacks it."
    ] = None
    cap_sender: Annotated[str, "Sender of the CAP alerts made from results, as for the data cluster."] = (
        "tocsin@example.org"
    )

    def cluster(self) -> ClusterSettings:
        return ClusterSettings(
            self.root, s3_endpoint=self.s3_endpoint, s3_region=self.s3_region, state=self.state, catalog=self.catalog
        )
