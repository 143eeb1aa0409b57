// Ends the torture's Postgres when the torture was itself killed: started with the data folder, it stops the server of
// that folder, whichever it is by then, when the channel to the torture closes.

import { findEmbedded, startEmbedded } from '../../db/embedded.ts'

const dataDir = process.argv[2]!

process.on('disconnect', async () => {
  // One that runs is taken over; none is started for it.
  if (await findEmbedded(dataDir)) await (await startEmbedded({ dataDir })).stop()
})
// A terminal's Ctrl-C is for the torture, which then ends in order.
process.on('SIGINT', () => {})
