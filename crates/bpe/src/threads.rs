//! Doing the same work on several threads. If the system refuses one, the work is done by fewer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

use crate::error::{Error, Result};

/// How often a caller hears of progress.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(50);

/// Run `work` on several threads, this one among them, and gather what they give.
pub(crate) fn gather<T: Send>(num_threads: usize, work: impl Fn() -> Result<Vec<T>> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let others: Vec<_> =
            (1..num_threads).map_while(|_| Builder::new().spawn_scoped(scope, &work).ok()).collect();
        let mut gathered = work()?;
        for other in others {
            gathered.extend(join(other)?);
        }
        Ok(gathered)
    })
}

/// Like `gather`, while this thread only watches: at every heartbeat it calls `on_progress`. Where that returns false,
/// or where a worker fails, `stop` is set, which the workers are expected to look at.
pub(crate) fn gather_watched<T: Send>(
    num_threads: usize,
    stop: &AtomicBool,
    on_progress: &mut dyn FnMut() -> bool,
    work: impl Fn() -> Result<Vec<T>> + Sync,
) -> Result<Vec<T>> {
    let work = || {
        let outcome = work();
        if outcome.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        outcome
    };
    let gathered = std::thread::scope(|scope| {
        let (alive, all_done) = channel::<()>();
        let workers: Vec<_> = (0..num_threads.max(1))
            .map_while(|_| {
                let alive = alive.clone();
                let work = &work;
                let watched = move || {
                    let _alive = alive;
                    work()
                };
                Builder::new().spawn_scoped(scope, watched).ok()
            })
            .collect();
        drop(alive);
        if workers.is_empty() {
            return work();
        }
        while all_done.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
            if !on_progress() {
                stop.store(true, Ordering::Relaxed);
            }
        }
        let mut gathered = Vec::new();
        for worker in workers {
            gathered.extend(join(worker)?);
        }
        Ok(gathered)
    })?;
    if stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(gathered) }
}

fn join<T>(worker: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    worker.join().unwrap_or(Err(Error::Interrupted))
}
