//! Where members come from, known again after a restart: whoever floods a port then would otherwise have the whole of it.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use muster_core::ids::{MemberId, unhex};
use muster_core::ledger::Ledger;
use muster_core::lock::lock;
use muster_net::shares::Shares;
use muster_net::source::Source;
use muster_store::home::Home;

/// Each line: a member and the address that it last came from.
const FILE: &str = "origins";

/// Where members come from, in memory and on the disk.
pub(super) struct Origins {
    shares: Arc<Shares>,
    /// What was written down last.
    written: Mutex<Vec<(MemberId, Source)>>,
}

impl Origins {
    /// CHAN-15: the members of the ledger are expected where they can be dialled, and where they came from the last time.
    pub(super) fn recall(home: &Home, ledger: &Ledger, shares: Arc<Shares>) -> Self {
        let members = ledger.members().iter().filter(|member| !ledger.is_banned(&member.id));
        let dialled = members.filter_map(|member| {
            let address = member.addresses.iter().find_map(|address| address.parse::<SocketAddr>().ok())?;
            Some((member.id, address.ip()))
        });
        let before =
            home.read_file(FILE).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let before = parsed(&before)
            .filter(|(member, _)| ledger.member(member).is_some() && !ledger.is_banned(member));
        dialled.chain(before).for_each(|(member, from)| shares.expect(member, Source::of(from)));
        Self { shares, written: Mutex::default() }
    }

    /// Writes down where members come from, if that has changed.
    pub(super) fn write_down(&self, home: &Home) {
        let origins = self.shares.origins();
        let mut written = lock(&self.written);
        if *written == origins {
            return;
        }
        let line = |(member, source): &(MemberId, Source)| format!("{member:#} {}\n", source.address());
        let text: String = origins.iter().map(line).collect();
        match home.write_file(FILE, text.as_bytes()) {
            Ok(()) => *written = origins,
            // A full disk is reported where something is lost by it.
            Err(error) => tracing::debug!("where members come from is not written down: {error}"),
        }
    }
}

/// What [`Origins::write_down`] wrote, as far as it can be read.
fn parsed(text: &str) -> impl Iterator<Item = (MemberId, IpAddr)> + '_ {
    text.lines().filter_map(|line| {
        let (member, from) = line.split_once(' ')?;
        Some((MemberId(unhex(member)?), from.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use muster_core::ledger::fixture::{Makers, Newcomer};
    use muster_core::sign::Identity;
    use muster_net::seats::ConnectionLimit;

    use super::*;

    #[test]
    fn chan_15_members_are_expected_after_a_restart_where_they_came_from() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        let [dialled, hidden] = [1, 2].map(|byte| Identity::from_secret(&[byte; 32]));
        let makers = Makers::of(1, 2);
        let newcomers = [Newcomer::node(&dialled).at("192.0.2.1:4000"), Newcomer::node(&hidden)];
        let ledger = makers.begin(makers.tiny(4, 2), newcomers);
        let shares = || Shares::new(ConnectionLimit { total: 8, per_source: 8 });
        let address = |text: &str| Source::of(text.parse().unwrap());
        let first = Origins::recall(&home, &ledger, shares());
        assert_eq!(first.shares.origins(), [(dialled.id(), address("192.0.2.1"))]);
        // Behind a router: nobody can dial it, and it comes all the same.
        first.shares.expect(hidden.id(), address("198.51.100.7"));
        first.shares.expect(MemberId([9; 32]), address("203.0.113.9"));
        first.write_down(&home);
        let second = Origins::recall(&home, &ledger, shares());
        let mut expected = vec![(dialled.id(), address("192.0.2.1")), (hidden.id(), address("198.51.100.7"))];
        expected.sort();
        assert_eq!(second.shares.origins(), expected, "and nobody that is no member");
        home.write_file(FILE, b"no member\n\xff").unwrap();
        assert_eq!(Origins::recall(&home, &ledger, shares()).shares.origins().len(), 1);
    }
}
