//! This machine's own addresses, as others may see them.

use std::net::{IpAddr, UdpSocket};

use if_addrs::get_if_addrs;

/// Addresses at which others may reach a port that listens on every address: the one from which packets to the internet
/// leave, or without a route there (one switch, a VPN) those of all interfaces. Empty on a machine that has only loopback.
pub fn reachable(v4: bool) -> Vec<IpAddr> {
    match outward(v4).filter(|own| !own.is_loopback()) {
        Some(own) => vec![own],
        None => of_interfaces(v4),
    }
}

/// Whether an address `HOST:PORT` leads to the very machine that dials it.
pub fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = host.parse::<IpAddr>().map(|ip| ip.to_canonical());
    ip.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback())
}

/// The address from which packets to the internet leave; `None` without a route. No packet is sent: connecting a UDP socket only looks the
/// route up. Behind a translating router this is the inner address.
fn outward(v4: bool) -> Option<IpAddr> {
    // Addresses that are set aside for documentation: routed like any other, never in use.
    let (own, other) = if v4 { ("0.0.0.0:0", "192.0.2.1:9") } else { ("[::]:0", "[2001:db8::1]:9") };
    let socket = UdpSocket::bind(own).ok()?;
    socket.connect(other).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// Addresses of all interfaces, without those that hold on one link only: they mean nothing on another machine.
fn of_interfaces(v4: bool) -> Vec<IpAddr> {
    let own = get_if_addrs().unwrap_or_default();
    let own = own.into_iter().filter(|own| !own.is_loopback() && !own.is_link_local());
    own.map(|own| own.ip()).filter(|ip| ip.is_ipv4() == v4).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_apart() {
        for own in ["127.0.0.1:7000", "127.3.2.1:1", "[::1]:7000", "[::ffff:127.0.0.1]:7000", "LocalHost:9"] {
            assert!(is_loopback(own), "{own}");
        }
        for other in
            ["10.0.0.1:7000", "[2001:db8::1]:9", "example.org:7000", "localhost.example.org:1", "0.0.0.0:1"]
        {
            assert!(!is_loopback(other), "{other}");
        }
        assert!([true, false].into_iter().flat_map(reachable).all(|own| !own.is_loopback()));
    }
}
