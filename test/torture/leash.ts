// Loaded into a `fleet up` of the torture before its main: when the torture dies, even by kill -9, the channel to it
// closes, and the fleet stops as on SIGTERM.

process.on('disconnect', () => process.kill(process.pid, 'SIGTERM'))
// The channel alone keeps nobody alive.
process.channel?.unref()
