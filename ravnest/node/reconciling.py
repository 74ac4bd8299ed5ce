"""At the end of an epoch root and leaf compare their ledgers, and write down what became of it."""

from __future__ import annotations

from ravnest.errors import LedgerError
from ravnest.metrics.events import EventLog, EventName
from ravnest.node.batches import UntrainedBatches
from ravnest.node.ledger import Account, EpochRecord, Ledger, differing, in_words
from ravnest.node.links import ClusterLinks
from ravnest.plan.model import NodePlan
from ravnest.wire.frame import Frame, FrameKind

DETAIL = "ledger"


class Reconciliation:
    """One stage's part: the root says what it sent, the leaf answers with what it trained.

    Args:
        ledger: of this stage.
    """

    def __init__(
        self, plan: NodePlan, ledger: Ledger, links: ClusterLinks, events: EventLog
    ) -> None:
        self._plan = plan
        self._ledger = ledger
        self._links = links
        self._events = events

    def announcement(self) -> Frame:
        """On the root: the frame that ends the epoch on every stage."""
        return Frame(FrameKind.EPOCH_END, details={DETAIL: self._ledger.taken.details()})

    def end_epoch(self, epoch: int, end: Frame, untrained: UntrainedBatches | None) -> None:
        """Compares this stage's ledger with the root's, and the root's with the leaf's.

        Args:
            end: the root's announcement.
            untrained: on the root, what its loader had and the script did not train on.

        Raises:
            LedgerError: a sample was sent and not trained, or the other way round.
        """
        record, sent = self._ledger.close(), Account.of(end.details.get(DETAIL))
        self._check(epoch, sent, record.trained, self._plan.node_id)
        if not sent.num_microbatches:
            return
        if self._plan.is_leaf and not self._plan.is_root:
            answer = {"epoch": epoch, DETAIL: record.trained.details()}
            self._links.send_ledger(Frame(FrameKind.LEDGER, details=answer))
        elif self._plan.is_root and not self._plan.is_leaf:
            trained = Account.of(self._links.receive_ledger(epoch).details.get(DETAIL))
            self._check(epoch, sent, trained, self._links.leaf)
        if self._plan.is_root or self._plan.is_leaf:
            self._write(epoch, record, untrained)

    def _check(self, epoch: int, sent: Account, trained: Account, node_id: int) -> None:
        if sent == trained:
            return
        found = differing(sent, trained)
        batches = "; ".join(f"batches {which} {how}" for how, which in found.items())
        raise LedgerError(
            f"epoch {epoch}: the root (node {self._links.root}) sent {_amount(sent)}, node "
            f"{node_id} trained {_amount(trained)}: "
            + (batches or "the same batches, but other rows of them or in another order"),
            hint="this is a defect, not a setting: please report it with the files in events/; "
            "what was saved before this epoch is as it should be",
        )

    def _write(self, epoch: int, record: EpochRecord, untrained: UntrainedBatches | None) -> None:
        missing = untrained or UntrainedBatches()
        of_loader = {
            "skipped": in_words(missing.skipped),
            "unread": in_words(missing.unread),
            "cut_off": in_words(missing.cut_off),
        }
        self._events.emit(
            EventName.LEDGER,
            epoch=epoch,
            batches=in_words(record.trained.batches),
            num_microbatches=record.trained.num_microbatches,
            num_samples=record.trained.num_samples,
            digest=record.trained.digest,
            steps=in_words(record.steps),
            left_out=in_words(record.left_out),
            empty=in_words(record.empty),
            repeated=in_words(record.repeated),
            **(of_loader if self._plan.is_root else {}),
        )


def _amount(account: Account) -> str:
    return f"{account.num_samples} samples in {account.num_microbatches} microbatches"
