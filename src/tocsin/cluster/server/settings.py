"""Settings of the data cluster's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from tocsin.cluster.cap.alert import is_identity
from tocsin.cluster.settings import LEASE_S, ClusterSettings
from tocsin.runtime.http.oidc_settings import OidcSettings
from tocsin.runtime.http.settings import ListenerSettings, Port, check_file, check_listener, invalid


@dataclass(frozen=True, slots=True)
class ClusterProcessSettings(ListenerSettings):
    section = "cluster"
    prefix = "TOCSIN_"

    port: Port = 8571
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    master: Annotated[str, "Spark master: `local[*]`, `spark://…`, `yarn`, `k8s://…`."] = "local[*]"
    spark: Annotated[
        Mapping[str, str],
        "Settings passed on to Spark; they override Tocsin's, except those that protect the machine from channel "
        "queries. As a flag: `--spark name=value`, may be repeated. In the environment: `name=value,name=value`.",
    ] = field(default_factory=dict)
    spark_secret_file: Annotated[
        str | None,
        "File with the secret that all processes of a Spark standalone cluster share. Required for `spark://…`, "
        "unless `insecure`.",
    ] = None
    executions: Annotated[
        int,
        "Repetitive channels that may run at the same time, and continuous channels besides them. A single channel "
        "never runs twice at the same time.",
    ] = 4
    maintain_s: Annotated[
        float, "Seconds between two rounds of maintenance: merging files and deleting what has passed its retention."
    ] = 5.0
    stop_s: Annotated[
        float, "Seconds that a stop waits for running executions before it cancels them. The next start repeats them."
    ] = 30.0
    spark_deadline_s: Annotated[
        float,
        "Seconds without an answer of Spark after which the data cluster kills Spark's JVM and ends with exit code 75, "
        "to be started again. At least 5.",
    ] = 20.0
    standby: Annotated[
        bool,
        "Wait while another data cluster leads, and take over when its lease ends. Needs a PostgreSQL catalog and a "
        "data root that both can write.",
    ] = False
    lease_s: Annotated[
        float,
        "Seconds that a data cluster leads after a renewal of its lease. A standby takes over a little later. At least "
        "2; with an SQLite catalog the lock of the state folder is the lease.",
    ] = LEASE_S
    heartbeat_s: Annotated[float, "Seconds after which an idle announcement stream sends a heartbeat."] = 15.0
    token_file: Annotated[
        bool,
        "Keep the first admin token in `<state>/admin-token`, readable by the server's user only (mode 0600), "
        "for commands on this machine.",
    ] = True
    keys: Annotated[
        str | None,
        "JWK-set file, or URL of the coordinator's `/v1/keys`. Tokens signed with these keys are accepted, "
        "besides the tokens of the catalog.",
    ] = None
    keys_ca: Annotated[
        str | None, "PEM file with the authority that signed the certificate of that URL, if the system lacks it."
    ] = None
    oidc: OidcSettings = field(default_factory=OidcSettings)
    direct_subscriptions: Annotated[
        int, "Most subscriptions of one user that subscribes at the data cluster itself, without a broker."
    ] = 10_000
    cap_sender: Annotated[
        str, "Sender of the CAP alerts made from results: an address that you own, without blanks and commas."
    ] = "tocsin@example.org"

    def check(self) -> None:
        check_listener(self)
        self.oidc.check_oidc()
        if self.oidc.oidc_keys is not None and self.keys is None:
            raise invalid("oidc_keys needs keys: the coordinator revokes users, and vouches for brokers")
        check_file(self, "spark_secret_file")
        authenticates = self.spark_secret_file is not None or "spark.authenticate" in self.spark
        if self.master.startswith("spark://") and not authenticates and not self.insecure:
            raise invalid(
                "spark_secret_file: any process that reaches Spark could run code in it; set the secret that Spark's "
                "master and workers have too, or set insecure if only trusted processes reach them"
            )
        if self.cluster.log not in ("auto", "local", "shared"):
            raise invalid(f"log {self.cluster.log}: expected auto, local or shared")
        if not self.lease_s >= 2:
            raise invalid("lease_s: expected at least 2")
        if self.standby and not (self.cluster.catalog or "").startswith("postgresql"):
            raise invalid("standby needs a catalog that two machines reach: set catalog to a postgresql:// URL")
        if self.executions < 1:
            raise invalid("executions: expected at least 1")
        if self.direct_subscriptions < 0:
            raise invalid("direct_subscriptions: expected at least 0")
        if not self.spark_deadline_s >= 5:
            raise invalid("spark_deadline_s: expected at least 5")
        if not is_identity(self.cap_sender):
            raise invalid(f"cap_sender {self.cap_sender!r}: expected no blanks, commas, < or &")
