//! The tables that a node has sealed for audits: each is opened once, to the verifier that asked for it.

use std::collections::BTreeMap;

use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, MemberId, Round, RunId};
use muster_core::messages::audit::{AuditRequest, ResultsSeal, Rows, TableOpening, TableSeal, table_seal};
use muster_core::sign::{Identity, Signed, Verified};

/// Tables sealed and not yet opened; when there are too many, one of the oldest round goes, which may be forgotten by now.
const OPEN: usize = 1024;
/// Requests whose rows are made at once: as many as may be due, and more.
const MAKING: usize = 256;

/// The tables that this member has sealed and not opened yet.
pub(super) struct Tables {
    run: RunId,
    secret: [u8; 32],
    /// Requests whose rows are being made.
    awaited: BTreeMap<Digest, AwaitedTable>,
    by_request: BTreeMap<Digest, SealedTable>,
    /// How many were ever sealed.
    count: u64,
}

struct AwaitedTable {
    round: Round,
    /// What was sealed for it already: after a restart the board has both.
    results: Option<Signed<ResultsSeal>>,
}

struct SealedTable {
    /// Its number in the order of sealing.
    order: u64,
    verifier: MemberId,
    round: Round,
    table: Digest,
    salt: [u8; 32],
    rows: Rows,
}

impl Tables {
    /// With the secret that salts come from.
    pub(super) fn new(run: RunId, secret: [u8; 32]) -> Self {
        Self { run, secret, awaited: BTreeMap::new(), by_request: BTreeMap::new(), count: 0 }
    }

    /// Seals the table of a request. The salt follows from secret and request, so a restart seals the same.
    pub(super) fn seal(
        &mut self,
        identity: &Identity,
        signed: &Signed<AuditRequest>,
        request: &Verified<AuditRequest>,
        root: Digest,
        rows: Rows,
    ) -> Signed<TableSeal> {
        let name = signed.digest();
        // The same salt and so the same table after a restart: AUDIT-2 allows one table for a request.
        let salt = Hasher::new(Domain::TABLE).part(&self.secret).part(&name.0).finish().0;
        let seal = table_seal(&salt, &rows);
        let table = identity.sign(
            self.run,
            &TableSeal { request: name, round: request.round, freeze: request.freeze, root, seal },
        );
        let (verifier, round) = (request.author(), request.round);
        let order = self.make_room(&name);
        self.by_request
            .insert(name, SealedTable { order, verifier, round, table: table.digest(), salt, rows });
        table
    }

    /// A table is going to be sealed for this request about a round, the oldest remembered one or a later one; `false` where its
    /// rows are being made already, or those of too many others. CHAN-26: a request that is shown again makes no more work.
    pub(super) fn expect(&mut self, request: Digest, round: Round, oldest: Round) -> bool {
        // Rows of some are never made.
        self.awaited.retain(|_, table| table.round >= oldest);
        let begins = !self.awaited.contains_key(&request) && self.awaited.len() < MAKING;
        if begins {
            self.awaited.insert(request, AwaitedTable { round, results: None });
        }
        begins
    }

    /// Opens a table that was just sealed, if its verifier has sealed results for it before.
    pub(super) fn open_at_once(&mut self, request: &Digest) -> Option<(Round, TableOpening)> {
        let results = self.awaited.remove(request)?.results?;
        self.open(&results)
    }

    /// Opens a table once the verifier that asked has sealed its results for it. Gives its round, too.
    pub(super) fn open(&mut self, signed: &Signed<ResultsSeal>) -> Option<(Round, TableOpening)> {
        let results = signed.verify(self.run).ok()?;
        let Some(held) = self.by_request.get(&results.request) else {
            if let Some(early) = self.awaited.get_mut(&results.request) {
                early.results = Some(signed.clone());
            }
            return None;
        };
        // AUDIT-6: results of anybody else, or for another table, must not show this one.
        if held.verifier != results.author() || held.table != results.table {
            return None;
        }
        let SealedTable { round, salt, rows, .. } = self.by_request.remove(&results.request)?;
        let (request, results) = (results.request, signed.digest());
        Some((round, TableOpening { request, results, salt, rows }))
    }

    /// Makes room for the table of a request, and gives its number in the order of sealing. Room is made before the table
    /// is there: what was just sealed is opened next, of whatever round.
    fn make_room(&mut self, request: &Digest) -> u64 {
        self.by_request.remove(request);
        while self.by_request.len() >= OPEN {
            let age = |(_, table): &(&Digest, &SealedTable)| (table.round, table.order);
            let Some(oldest) = self.by_request.iter().min_by_key(age).map(|(name, _)| *name) else { break };
            self.by_request.remove(&oldest);
        }
        self.count += 1;
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId(Digest([7; 32]));

    /// Tables of one member, and what asks for their opening.
    struct Audited {
        tables: Tables,
        member: Identity,
        verifier: Identity,
        asked: u32,
    }

    impl Audited {
        fn seal(&mut self, round: u32) -> Signed<ResultsSeal> {
            self.asked += 1;
            let mut freeze = Digest::default();
            freeze.0[..4].copy_from_slice(&self.asked.to_le_bytes());
            let target = self.member.id();
            let request = AuditRequest { round: Round(round), freeze, target, coin: None };
            let signed = self.verifier.sign(RUN, &request);
            let request = signed.verify(RUN).unwrap();
            let table = self.tables.seal(&self.member, &signed, &request, Digest::default(), Rows::default());
            let (request, table, seal) = (signed.digest(), table.digest(), Digest::default());
            self.verifier.sign(RUN, &ResultsSeal { request, table, seal })
        }

        fn opens(&mut self, results: &Signed<ResultsSeal>) -> bool {
            self.tables.open(results).is_some()
        }
    }

    #[test]
    fn results_that_come_before_the_table_open_it_once_it_is_sealed() {
        let [member, verifier] = [1, 2].map(|secret| Identity::from_secret(&[secret; 32]));
        let mut before = Audited { tables: Tables::new(RUN, [3; 32]), member, verifier, asked: 0 };
        let results = before.seal(5);
        let name = results.verify(RUN).unwrap().request;
        // Another process of the same member reads the board: the request, then the results.
        before.tables = Tables::new(RUN, [3; 32]);
        // AUDIT-6: nothing is opened but the table that the sealed results name.
        assert!(!before.opens(&results), "nobody has asked it, as far as it knows");
        assert!(before.tables.expect(name, Round(5), Round(0)));
        assert!(!before.opens(&results), "its rows are being made");
        before.asked = 0;
        before.seal(5);
        assert!(before.tables.open_at_once(&name).is_some());
        assert!(before.tables.open_at_once(&name).is_none() && !before.opens(&results), "once");
    }

    #[test]
    fn audit_6_results_of_anybody_else_or_for_another_table_open_nothing() {
        let [member, verifier, other] = [1, 2, 4].map(|secret| Identity::from_secret(&[secret; 32]));
        let mut audited = Audited { tables: Tables::new(RUN, [3; 32]), member, verifier, asked: 0 };
        let results = audited.seal(5);
        let said = results.verify(RUN).unwrap().into_inner();
        assert!(!audited.opens(&other.sign(RUN, &said)), "who has not asked");
        let elsewhere = ResultsSeal { table: Digest([8; 32]), ..said };
        let elsewhere = audited.verifier.sign(RUN, &elsewhere);
        assert!(!audited.opens(&elsewhere), "it has bound itself to no results for this table");
        assert!(audited.opens(&results), "what was refused has changed nothing");
    }

    #[test]
    fn chan_26_a_request_that_is_shown_again_and_again_makes_one_table() {
        let mut tables = Tables::new(RUN, [3; 32]);
        let name = |number: u32| {
            let mut name = Digest::default();
            name.0[..4].copy_from_slice(&number.to_le_bytes());
            name
        };
        let mut begun =
            |number: u32, round: u32, oldest: u32| tables.expect(name(number), Round(round), Round(oldest));
        assert!(begun(0, 5, 5));
        assert!((0..1000).all(|_| !begun(0, 5, 5)));
        // One signer has as many names for one request as it likes.
        assert_eq!((1..1000).filter(|number| begun(*number, 5, 5)).count(), MAKING - 1);
        assert!(begun(1000, 6, 6), "what is forgotten waits for nothing");
        tables.open_at_once(&name(1000));
        assert!(
            tables.expect(name(1000), Round(6), Round(6)),
            "it is made, and asked for again by a new board"
        );
    }

    #[test]
    fn of_too_many_tables_the_oldest_go() {
        let [member, verifier] = [1, 2].map(|secret| Identity::from_secret(&[secret; 32]));
        let mut audited = Audited { tables: Tables::new(RUN, [3; 32]), member, verifier, asked: 0 };
        let sealed: Vec<_> = (0..OPEN as u32 + 100).map(|asked| audited.seal(5 + asked / 300)).collect();
        // What was asked last is of the oldest round, and is opened all the same.
        let last = audited.seal(4);
        assert!(audited.opens(&last));
        let open: Vec<bool> = sealed.iter().map(|results| audited.opens(results)).collect();
        assert_eq!(open.iter().position(|open| *open), Some(101));
        assert!(open[101..].iter().all(|open| *open), "none but the oldest");
        assert!(!audited.opens(&sealed[500]), "a table is opened once");
    }
}
