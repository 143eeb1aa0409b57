// What people are told of their place by REST: the same on joining and on polling.

import type { Joined, PurchaseWindow } from '../../domain/waitingroom.ts'
import { statusOf } from './crowd.ts'
import type { Room } from './room.ts'

export type PlaceBody = {
  match_id: string
  status: string
  position: number
  estimated_wait_minutes: number | null
  queue_token?: string
  websocket_url?: string
  sse_url?: string
  purchase_window_expires_at?: string
  checkout_url?: string
}

export type Links = { http: string; token: string }

/** @param base where people reach us, as http(s)://host */
export function placeBody(
  room: Room,
  joined: Exclude<Joined, { is: 'closed' }>,
  { token, base, checkout }: { token: string; base: string; checkout: string },
): PlaceBody {
  const links = {
    queue_token: token,
    websocket_url: `${base.replace(/^http/, 'ws')}/ws/${token}`,
    sse_url: `${base}/sse/${token}`,
  }
  if (joined.is === 'admitted') return { ...turnBody(room, joined.window, checkout), ...links }
  // Whose turn is moments away is next.
  const position = Math.max(1, joined.position)
  return {
    match_id: room.matchId,
    status: statusOf(room),
    position,
    estimated_wait_minutes: room.estimate(position),
    ...links,
  }
}

export const turnBody = (room: Room, window: PurchaseWindow, checkout: string): PlaceBody => ({
  match_id: room.matchId,
  status: 'granted',
  position: 0,
  estimated_wait_minutes: 0,
  purchase_window_expires_at: new Date(window.expiresAtMs).toISOString(),
  checkout_url: checkout,
})

/** CHECKOUT_URL with what it needs to know. */
export function checkoutUrl(base: string, matchId: string, sessionToken: string): string {
  const url = new URL(base)
  url.searchParams.set('match_id', matchId)
  url.searchParams.set('session_token', sessionToken)
  return url.href
}
