//! Answering audits: the sealed table, and its opening.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use muster_compute::row;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, MemberId, Round, RunId};
use muster_core::messages::audit::{AuditRequest, ResultsSeal, Rows, TableOpening, TableSeal, table_seal};
use muster_core::sign::{Identity, Signed, Verified};
use muster_core::sketch::Probe;

use super::compute::LeafSum;
use super::conduct::Conduct;

/// Tables sealed and not yet opened, by request; the oldest goes when there are too many.
const OPEN: usize = 1024;

/// The tables that this member has sealed.
pub struct Answers {
    run: RunId,
    secret: [u8; 32],
    sealed: Mutex<BTreeMap<Digest, Sealed>>,
}

struct Sealed {
    verifier: MemberId,
    round: Round,
    table: Digest,
    salt: [u8; 32],
    rows: Rows,
}

impl Answers {
    /// With the secret that salts come from.
    pub fn new(run: RunId, secret: [u8; 32]) -> Self {
        Self { run, secret, sealed: Mutex::default() }
    }

    /// The rows of a contribution, made on so many threads.
    pub fn rows(probe: &Probe, leaves: &[LeafSum], threads: usize) -> Option<Rows> {
        let rows = leaves.iter().map(|(q, loss)| row(threads, probe, q, *loss));
        Rows::new(rows.collect()).ok()
    }

    /// Seals the table of a request. The salt follows from secret and request, so a restart seals the same.
    pub fn seal(
        &self,
        identity: &Identity,
        signed: &Signed<AuditRequest>,
        request: &Verified<AuditRequest>,
        root: Digest,
        rows: Rows,
    ) -> Signed<TableSeal> {
        let name = signed.digest();
        let salt = Hasher::new(Domain::TABLE).part(&self.secret).part(&name.0).finish().0;
        let seal = table_seal(&salt, &rows);
        let table = identity.sign(
            self.run,
            &TableSeal { request: name, round: request.round, freeze: request.freeze, root, seal },
        );
        let mut sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        sealed.insert(
            name,
            Sealed { verifier: request.author(), round: request.round, table: table.digest(), salt, rows },
        );
        while sealed.len() > OPEN {
            sealed.pop_first();
        }
        table
    }

    /// Opens a table once the verifier that asked has sealed its results for it.
    pub fn open(
        &self,
        identity: &Identity,
        signed: &Signed<ResultsSeal>,
        conduct: &dyn Conduct,
    ) -> Option<Signed<TableOpening>> {
        let results = signed.verify(self.run).ok()?;
        let mut sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        let held = sealed.get(&results.request)?;
        if held.verifier != results.author() || held.table != results.table {
            return None;
        }
        let held = sealed.remove(&results.request)?;
        let opening = TableOpening {
            request: results.request,
            results: signed.digest(),
            salt: held.salt,
            rows: conduct.open(held.round, held.rows)?,
        };
        Some(identity.sign(self.run, &opening))
    }
}
