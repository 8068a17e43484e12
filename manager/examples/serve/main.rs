//! A small server on the manager: requests that share a prompt, a fork that goes another way, preemption when the pages
//! run out, a request that can never fit, one that outgrows its context and is shifted, and a session that is saved and
//! resumed by another server, with pages of another size.

mod server;
mod toy;

use std::error::Error as StdError;

use server::Server;

type Result<T> = std::result::Result<T, Box<dyn StdError>>;

const SYSTEM: [u32; 8] = [3, 1, 4, 1, 5, 9, 2, 6];

fn main() -> Result<()> {
    let mut server = Server::new(4)?;
    server.submit("too long", &[7; toy::GEOMETRY.max_t + 1], 1);
    server.submit("first", &[&SYSTEM[..], &[11, 12]].concat(), 12);
    server.submit("second", &[&SYSTEM[..], &[21]].concat(), 8);
    run(&mut server, |step, server| {
        match step {
            2 => server.fork("first", "fork", 5)?,
            3 => server.submit("third", &[&SYSTEM[..], &[31, 32, 33]].concat(), 6),
            _ => {}
        }
        Ok(true)
    })?;

    server.submit("long", &[&SYSTEM[..], &[41, 42]].concat(), 40);
    server.submit("short", &[&SYSTEM[..], &[51]].concat(), 26);
    run(&mut server, |step, _| Ok(step < 22))?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("session.kv");
    let requests = server.save(&path)?;
    println!("saved {} bytes, and ended", path.metadata()?.len());
    let mut server = Server::new(2)?;
    server.resume(&path, requests)?;
    run(&mut server, |_, _| Ok(true))
}

/// Steps until nothing is left to do, or `before` one says that it is enough.
fn run(server: &mut Server, mut before: impl FnMut(usize, &mut Server) -> Result<bool>) -> Result<()> {
    for step in 0.. {
        if server.is_idle() || !before(step, server)? {
            break;
        }
        for request in server.step()? {
            println!("{}: finished with {:?}", request.name, request.tokens);
        }
        let stats = server.stats()?;
        println!("step {step}: {} slots used, {} cached, {} free", stats.used, stats.cached, stats.free);
    }
    Ok(())
}
