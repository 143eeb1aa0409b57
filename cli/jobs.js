#!/usr/bin/env node
// The program `jobs`: operates the job table. What it does stands in main.ts.

import { launch } from './launch.js'

launch('jobs')
