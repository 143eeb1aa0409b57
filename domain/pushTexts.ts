// What a push says, by template and language: short, since a phone shows two lines of it. A language that is not here
// falls back to English. No I/O; what the values name is put in as it is, since a notification is no markup.

import type { PushTemplate } from './pushes.ts'

type Text = { title: string; body: string }

/** `{name}` is a value. A text whose value is missing gives way to its `plain` one. */
type Texts = Record<PushTemplate, Text & { plain?: Text }>

const texts: Readonly<Record<string, Texts>> = {
  en: {
    ticket_ready: {
      title: 'Your tickets are here',
      body: '{event_name}: open the app to see them.',
    },
    quota_invitation: {
      title: 'You are invited to buy tickets',
      body: 'A quota for {event_name} is reserved for you.',
      plain: { title: 'You are invited to buy tickets', body: 'A quota is reserved for you.' },
    },
    queue_your_turn: {
      title: 'It is your turn',
      body: 'You can buy your tickets now, for {minutes} minutes.',
      plain: { title: 'It is your turn', body: 'You can buy your tickets now.' },
    },
    queue_expired: {
      title: 'Your place in the queue is gone',
      body: 'Join again if you still want tickets.',
    },
    queue_position: {
      title: 'You are number {position} in the queue',
      body: 'About {minutes} minutes to go.',
    },
  },
  de: {
    ticket_ready: {
      title: 'Deine Tickets sind da',
      body: '{event_name}: Du findest sie in der App.',
    },
    quota_invitation: {
      title: 'Du bist zum Ticketkauf eingeladen',
      body: 'Ein Kontingent für {event_name} ist für dich reserviert.',
      plain: {
        title: 'Du bist zum Ticketkauf eingeladen',
        body: 'Ein Kontingent ist für dich reserviert.',
      },
    },
    queue_your_turn: {
      title: 'Du bist an der Reihe',
      body: 'Du kannst jetzt {minutes} Minuten lang Tickets kaufen.',
      plain: { title: 'Du bist an der Reihe', body: 'Du kannst jetzt Tickets kaufen.' },
    },
    queue_expired: {
      title: 'Dein Platz in der Warteschlange ist verfallen',
      body: 'Stell dich noch einmal an, wenn du Tickets möchtest.',
    },
    queue_position: {
      title: 'Du bist Nummer {position} in der Warteschlange',
      body: 'Noch etwa {minutes} Minuten.',
    },
  },
  hr: {
    ticket_ready: {
      title: 'Tvoje ulaznice su stigle',
      body: '{event_name}: pronađi ih u aplikaciji.',
    },
    quota_invitation: {
      title: 'Pozivamo te na kupnju ulaznica',
      body: 'Za tebe je rezervirana kvota: {event_name}.',
      plain: { title: 'Pozivamo te na kupnju ulaznica', body: 'Za tebe je rezervirana kvota.' },
    },
    queue_your_turn: {
      title: 'Na redu si',
      body: 'Ulaznice možeš kupiti sada, preostalo minuta: {minutes}.',
      plain: { title: 'Na redu si', body: 'Ulaznice možeš kupiti sada.' },
    },
    queue_expired: {
      title: 'Tvoje mjesto u redu je isteklo',
      body: 'Ponovno stani u red ako još želiš ulaznice.',
    },
    queue_position: {
      title: 'Tvoje mjesto u redu: {position}',
      body: 'Preostalo minuta, otprilike: {minutes}.',
    },
  },
  ja: {
    ticket_ready: {
      title: 'チケットが届きました',
      body: '{event_name}：アプリでご確認ください。',
    },
    quota_invitation: {
      title: 'チケット購入のご招待',
      body: '{event_name}のチケット枠を確保しました。',
      plain: { title: 'チケット購入のご招待', body: 'お客様専用のチケット枠を確保しました。' },
    },
    queue_your_turn: {
      title: 'ご購入の順番が来ました',
      body: 'あと{minutes}分間、チケットをご購入いただけます。',
      plain: { title: 'ご購入の順番が来ました', body: '今すぐチケットをご購入いただけます。' },
    },
    queue_expired: {
      title: '待機列の順番が無効になりました',
      body: 'チケットをご希望の場合は、もう一度お並びください。',
    },
    queue_position: {
      title: '現在の待機順：{position}番',
      body: '待ち時間の目安は約{minutes}分です。',
    },
  },
}

export const pushLanguages = Object.keys(texts)

/** By the first part of a language tag. */
export const languageOf = (locale: string): string => {
  const language = locale.split('-', 1)[0]?.toLowerCase() ?? ''
  return Object.hasOwn(texts, language) ? language : 'en'
}

export function pushText(
  template: PushTemplate,
  locale: string,
  values: Readonly<Record<string, string | number | undefined>> = {},
): Text {
  const { plain, ...text } = (texts[languageOf(locale)] as Texts)[template]
  const names = [...`${text.title} ${text.body}`.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)
  const isWhole = names.every((name) => values[name as string] !== undefined)
  const { title, body } = !isWhole && plain ? plain : text
  const fill = (said: string) => said.replace(/\{(\w+)\}/g, (_, name) => oneLine(values[name]))
  return { title: fill(title), body: fill(body) }
}

const valueMax = 200

/** A name of an event that would fill the screen is cut. */
function oneLine(value: string | number | undefined): string {
  const text = String(value ?? '')
    .replace(/[\s\p{Cc}]+/gu, ' ')
    .trim()
  const chars = [...text]
  return chars.length <= valueMax ? text : `${chars.slice(0, valueMax - 1).join('')}…`
}
