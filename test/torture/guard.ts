// Ends the torture's Postgres when the torture was itself killed: told over its channel which process to end, it does so
// when the channel closes. An orderly end has stopped the server before.

let pid: number | undefined

process.on('message', (told: { pid?: number }) => {
  pid = told.pid
})
process.on('disconnect', () => {
  try {
    if (pid !== undefined) process.kill(pid, 'SIGQUIT')
  } catch {
    // It is gone already.
  }
})
// A terminal's Ctrl-C is for the torture, which then ends in order.
process.on('SIGINT', () => {})
