//! The signed steps of one audit. Each is a type that only the step before it gives, and what fits a step is checked
//! here alone: for the steward's docket, the verifier and the judge.

use std::sync::Arc;

use crate::coins::CoinKind;
use crate::error::{Reject, require};
use crate::ids::{Digest, RunId, Slot};
use crate::messages::audit::{
    AuditRequest, ResultsSeal, Rows, TableOpening, TableSeal, Verdict, results_seal, table_seal,
};
use crate::messages::evidence::Transcript;
use crate::messages::record::Record;
use crate::messages::round::Commit;
use crate::sign::{Signed, Verified};
use crate::sketch::Probe;

/// Number of the leaf coin that a verifier uses for a slot (COIN-8).
// The slot is the number: no counter to keep, and no coin serves two audits of a round.
pub fn leaf_coin(slot: Slot) -> u16 {
    slot.0
}

/// A verifier has asked about a frozen contribution.
#[derive(Clone, Debug)]
pub struct Requested {
    run: RunId,
    signed: Signed<AuditRequest>,
    request: Verified<AuditRequest>,
    name: Digest,
    slot: Slot,
    root: Digest,
    leaves: u32,
}

/// The member has sealed its table.
#[derive(Clone, Debug)]
pub struct TableSealed {
    requested: Arc<Requested>,
    table: Signed<TableSeal>,
    seal: Digest,
}

/// The verifier has sealed its results.
#[derive(Clone, Debug)]
pub struct ResultsSealed {
    before: TableSealed,
    results: Signed<ResultsSeal>,
    seal: Digest,
}

/// The member has opened its table.
#[derive(Clone, Debug)]
pub struct TableOpened {
    before: ResultsSealed,
    opening: Signed<TableOpening>,
}

/// The verifier has given its verdict.
#[derive(Clone, Debug)]
pub struct Judged {
    before: TableOpened,
    signed: Signed<Verdict>,
    verdict: Verified<Verdict>,
}

impl Requested {
    /// The audit of the contribution with this frozen commitment. `request` is the signed one, verified.
    ///
    /// # Errors
    /// [`Reject`] for a request about another contribution.
    pub fn new(
        run: RunId,
        signed: &Signed<AuditRequest>,
        request: Verified<AuditRequest>,
        commit: &Commit,
        freeze: &Digest,
    ) -> Result<Self, Reject> {
        let round = commit.round;
        require(request.freeze == *freeze && request.round == round, "the request is of this freeze")?;
        let shown = request.coin.as_ref();
        // A leaf coin here would be spent before its draw; one of another round could have been chosen.
        let shown = shown.is_none_or(|coin| coin.kind == CoinKind::Node && coin.round == round);
        require(shown, "a request shows the node coin of its round")?;
        let Commit { slot, root, leaves, .. } = *commit;
        Ok(Self { run, signed: signed.clone(), request, name: signed.digest(), slot, root, leaves })
    }

    /// What was asked.
    pub fn request(&self) -> &Verified<AuditRequest> {
        &self.request
    }

    /// The same, as the verifier signed it.
    pub fn signed(&self) -> &Signed<AuditRequest> {
        &self.signed
    }

    /// The digest by which all steps name it.
    pub fn name(&self) -> Digest {
        self.name
    }

    /// Slot of the contribution.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// How many leaves the contribution has.
    pub fn leaves(&self) -> u32 {
        self.leaves
    }

    /// AUDIT-2, AUDIT-3: the member seals its table.
    ///
    /// # Errors
    /// [`Reject`] when it is not the member's, or of something else.
    pub fn seal(self: &Arc<Self>, signed: &Signed<TableSeal>) -> Result<TableSealed, Reject> {
        let table = signed.verify(self.run)?;
        require(table.author() == self.request.target, "the audited member seals its table")?;
        require(table.request == self.name, "each step names the request")?;
        require(
            table.freeze == self.request.freeze && table.round == self.request.round,
            "the table is of the asked round",
        )?;
        // Otherwise a member with two commitments could answer for the other one.
        require(table.root == self.root, "the table is of the frozen commitment")?;
        Ok(TableSealed { requested: self.clone(), table: signed.clone(), seal: table.seal })
    }
}

impl TableSealed {
    /// The request that it answers.
    pub fn requested(&self) -> &Arc<Requested> {
        &self.requested
    }

    /// What the leaves are drawn by.
    pub fn seal(&self) -> Digest {
        self.seal
    }

    /// The sealed table, as the member signed it.
    pub fn table(&self) -> &Signed<TableSeal> {
        &self.table
    }

    /// AUDIT-5: the verifier seals its results.
    ///
    /// # Errors
    /// [`Reject`] when they are not the verifier's, or about another table.
    pub fn answer(&self, signed: &Signed<ResultsSeal>) -> Result<ResultsSealed, Reject> {
        let results = signed.verify(self.requested.run)?;
        require(results.author() == self.requested.request.author(), "the verifier seals its results")?;
        require(results.request == self.requested.name, "each step names the request")?;
        // The very table: a member must not put another one beside the results afterwards.
        require(results.table == self.table.digest(), "the results name the sealed table")?;
        Ok(ResultsSealed { before: self.clone(), results: signed.clone(), seal: results.seal })
    }
}

impl ResultsSealed {
    /// The step before it.
    pub fn before(&self) -> &TableSealed {
        &self.before
    }

    /// AUDIT-6: the member opens its table, with rows that fit what the audit sketches with. Gives the rows, too.
    ///
    /// # Errors
    /// [`Reject`] when it is not the member's, or another table than the sealed one.
    pub fn open(&self, signed: &Signed<TableOpening>, probe: &Probe) -> Result<(TableOpened, Rows), Reject> {
        let TableSealed { requested, seal, .. } = &self.before;
        let opening = signed.verify(requested.run)?;
        require(opening.author() == requested.request.target, "the audited member opens its table")?;
        require(opening.request == requested.name, "each step names the request")?;
        // Opened only for these results: they are fixed before the verifier can see the table and copy it.
        require(opening.results == self.results.digest(), "the opening names the sealed results")?;
        require(table_seal(&opening.salt, &opening.rows) == *seal, "the opening fits its seal")?;
        // A drawn leaf without a row could not be compared.
        require(opening.rows.len() == requested.leaves as usize, "the table has a row for each leaf")?;
        let fits = opening.rows.iter().all(|row| probe.fits(&row.sketch));
        require(fits, "the table's sketches are those of the profile")?;
        Ok((TableOpened { before: self.clone(), opening: signed.clone() }, opening.into_inner().rows))
    }
}

impl TableOpened {
    /// The step before it.
    pub fn before(&self) -> &ResultsSealed {
        &self.before
    }

    /// The opened table, as the member signed it.
    pub fn opening(&self) -> &Signed<TableOpening> {
        &self.opening
    }

    /// The verifier gives its verdict. Whether its coin is the registered one, and the leaves those that it draws, is
    /// another matter.
    ///
    /// # Errors
    /// [`Reject`] when it is not the verifier's, or about something else.
    pub fn judge(&self, signed: &Signed<Verdict>) -> Result<Judged, Reject> {
        let requested = &self.before.before.requested;
        let verdict = signed.verify(requested.run)?;
        require(verdict.author() == requested.request.author(), "the verifier that asked gives the verdict")?;
        require(verdict.request == requested.name, "each step names the request")?;
        // By digest, so that the verdict is evidence with this opening and no other.
        require(verdict.opening == self.opening.digest(), "the verdict names the opening")?;
        let fits = results_seal(&verdict.salt, &verdict.results) == self.before.seal;
        require(fits, "the results fit their seal")?;
        let coin = &verdict.coin;
        // Another coin of its own would let the verifier choose which leaves it looks at.
        let own = coin.kind == CoinKind::Leaf
            && coin.round == requested.request.round
            && coin.k == leaf_coin(requested.slot);
        require(own, "a verdict shows the leaf coin of the audited slot")?;
        Ok(Judged { before: self.clone(), signed: signed.clone(), verdict })
    }
}

impl Judged {
    /// The verdict.
    pub fn verdict(&self) -> &Verified<Verdict> {
        &self.verdict
    }

    /// The same, as the verifier signed it.
    pub fn signed(&self) -> &Signed<Verdict> {
        &self.signed
    }

    /// The seal of the table, by which the leaves are drawn.
    pub fn table_seal(&self) -> Digest {
        self.before.before.before.seal
    }

    /// The whole audit as evidence, with the Freeze that holds the contribution.
    pub fn transcript(&self, freeze: Signed<Record>) -> Transcript {
        let TableOpened { before: ResultsSealed { before, results, .. }, opening } = &self.before;
        Transcript {
            freeze,
            request: before.requested.signed.clone(),
            table: before.table.clone(),
            results: results.clone(),
            opening: opening.clone(),
            verdict: self.signed.clone(),
        }
    }
}
