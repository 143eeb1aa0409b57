// What a PromQL expression asks for, as far as tests of the dashboard and the alerts need to know.

/** The metrics of an expression: names that are neither functions nor labels nor words. */
export function metricsOf(expr: string): string[] {
  const bare = expr
    .replace(/"[^"]*"/g, '""')
    .replace(/\{[^}]*\}|\[[^\]]*\]/g, ' ')
    .replace(/\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)/g, ' ')
    .replace(/\b(and|or|unless)\b/g, ' ')
  return [...bare.matchAll(/(?<![\w:.])[a-zA-Z_:][\w:]*(?![\w:]*\s*\()/g)].map(([name]) => name)
}
