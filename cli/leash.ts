// Loaded into every worker that `fleet up` starts, before its main: when the supervisor dies, even by kill -9, the
// channel to it closes, and the worker stops as on SIGTERM, so that no orphan works on beside the next fleet.

process.on('disconnect', () => process.kill(process.pid, 'SIGTERM'))
// The channel alone keeps nobody alive.
process.channel?.unref()
